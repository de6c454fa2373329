package writes

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// parseIn passes an encoded object to the parser in two parts, which are split at the given place.
func parseIn(text string, at int) object {
	var j jsonObject
	if o, known := j.parse([]byte(text[:at]), false); known {
		return o
	}
	o, _ := j.parse([]byte(text[at:]), true)
	return o
}

func TestJSONObject_IsFoundInParts(t *testing.T) {
	twelve := object{uid: "u", version: "12"}
	for text, want := range map[string]object{
		`{"metadata":{"uid":"u","resourceVersion":"12"}}`:                                   twelve,
		`{ "kind" : "X" , "metadata" : { "uid" : "u" , "resourceVersion" : "12" } }`:        twelve,
		`{"data":{"metadata":{"uid":"x"}},"metadata":{"uid":"u","resourceVersion":"12"}}`:   twelve,
		`{"data":["metadata",{"uid":"x"}],"metadata":{"uid":"u","resourceVersion":"12"}}`:   twelve,
		`{"kind":"metadata","x":{"uid":"x"},"metadata":{"uid":"u","resourceVersion":"12"}}`: twelve,
		`{"metadata":{"x":"resourceVersion","y":"1","uid":"u","resourceVersion":"12"}}`:     twelve,
		`{"metadata":{"annotations":{"uid":"x"},"uid":"u","resourceVersion":"12"}}`:         twelve,
		`{"metadata":{"finalizers":["uid","x"],"uid":"u","resourceVersion":"12"}}`: {
			uid: "u", version: "12", finalizers: true,
		},
		`{"metadata":{"finalizers":[],"generation":3,"uid":"u","resourceVersion":"12"}}`:                       twelve,
		`{"metadata":{"uid":"u","deletionTimestamp":null,"resourceVersion":"12"}}`:                             twelve,
		`{"metadata":{"uid":"u","resourceVersion":"12"},"spec":{"metadata":{"uid":"x"}}}`:                      twelve,
		`{"x":"a\\\"},{\"metadata\":{\"uid\":\"x\"}","metadata":{"uid":"u","resourceVersion":"12"}}`:           twelve,
		`{"metadata":{"ownerReferences":[{"uid":"x","name":"y"}],"uid":"u","resourceVersion":"12"}}`:           twelve,
		`{"metadata":{"managedFields":[{"f:uid":{}}],"uid":"u","resourceVersion":"12"},"details":{"uid":"x"}}`: twelve,
		`{"metadata":{"labels":{"a/b":"c","d":""},"name":"n","namespace":"s","uid":"u","resourceVersion":"12"}}`: {
			name: "n", uid: "u", version: "12", labels: labels.Set{"a/b": "c", "d": ""},
		},
		`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"resourceVersion":"12"}}`: {
			version: "12", deleting: true,
		},
		`{"metadata":{"deletionGracePeriodSeconds": 30,"deletionTimestamp":"2026-01-01T00:00:00Z","resourceVersion":"1"}}`: {
			version: "1", deleting: true, grace: true,
		},
		`{"spec":{"deletionGracePeriodSeconds":30},"metadata":{"uid":"u","resourceVersion":"12"}}`: twelve,
		`{"kind":"Status","metadata":{},"status":"Success","details":{"name":"n","uid":"u"}}`:      {detailsUID: "u"},
		`{"kind":"Status","metadata":{},"details":{"causes":[{"uid":"x"}]}}`:                       {},
		`{"metadata":{"resourceVersion":"12"},"status":{"uid":"x"}}`:                               {version: "12"},
		`{"metadata":{"name":"a\u0026b\\","labels":{"a":"b"},"resourceVersion":"12"}}`: {
			name: `a&b\`, version: "12", labels: labels.Set{"a": "b"},
		},
		`{"metadata":["uid","u"]}`:             {},
		`{"metadata":null,"spec":{"uid":"u"}}`: {},
		`{"status":{"metadata":{"uid":"u"}}}`:  {},
		`"metadata"`:                           {},
		``:                                     {},
		`}}]]{"metadata":{"uid":"u"}}`:         {uid: "u"},
	} {
		for at := range len(text) + 1 {
			if got := parseIn(text, at); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, split at %d: got %+v, want %+v", text, at, got, want)
			}
		}
	}
}

// Random objects have the same metadata as for the standard library.
func TestJSONObject_AgreesWithTheStandardLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{"metadata", "resourceVersion", "uid", "labels", `a"b\`, "{", "}", "[", ",", ":", "12", "ü", "\n"}
	word := func() string { return words[random.IntN(len(words))] }
	var value func(depth int) any
	value = func(depth int) any {
		switch kind := random.IntN(6); {
		case kind == 0 && depth < 4:
			return []any{value(depth + 1), value(depth + 1)}
		case kind < 3 && depth < 4:
			nested := map[string]any{}
			for range random.IntN(4) {
				nested[word()] = value(depth + 1)
			}
			return nested
		case kind == 3:
			return random.IntN(100)
		}
		return word()
	}
	type metadata struct {
		Name, UID, ResourceVersion string
		Labels                     map[string]string
	}
	for range 2000 {
		encoded, err := json.Marshal(map[string]any{"spec": value(1), word(): value(1), "metadata": map[string]any{
			"resourceVersion": fmt.Sprint(random.IntN(1000)), "uid": "u", "name": "n", "labels": map[string]string{"a": "b"},
			"x" + word(): value(2), "annotations": map[string]string{word(): word()},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var decoded struct{ Metadata metadata }
		if err := json.Unmarshal(encoded, &decoded); err != nil {
			t.Fatal(err)
		}
		o := parseIn(string(encoded), random.IntN(len(encoded)))
		if got := (metadata{o.name, o.uid, o.version, o.labels}); !reflect.DeepEqual(got, decoded.Metadata) {
			t.Fatalf("%s: got %+v, want %+v", encoded, got, decoded.Metadata)
		}
	}
}

// The response to a write is usually a few kilobytes long, and is decoded by the client, too.
func BenchmarkJSONObject(b *testing.B) {
	text := []byte(`{"apiVersion":"v1","data":{"text":"` + strings.Repeat("lorem ipsum ", 200) +
		`"},"kind":"ConfigMap","metadata":{"name":"a","uid":"u","resourceVersion":"12"}}`)
	b.Run("parser", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if o, _ := (&jsonObject{}).parse(text, true); o.version != "12" {
				b.Fatal(o)
			}
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var decoded struct {
				Metadata struct{ UID, ResourceVersion string }
			}
			if err := json.Unmarshal(text, &decoded); err != nil {
				b.Fatal(err)
			}
		}
	})
}
