package replica

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// versionOf passes the object to a reader in two parts, which are split at the given place.
func versionOf(object string, at int) string {
	var v jsonVersion
	version, found := v.read([]byte(object[:at]), false)
	if !found {
		version, _ = v.read([]byte(object[at:]), true)
	}
	return version
}

func TestJSONVersion_IsFoundInParts(t *testing.T) {
	for object, want := range map[string]string{
		`{"metadata":{"resourceVersion":"12"}}`:                                                        "12",
		`{ "kind" : "X" , "metadata" : { "name" : "a" , "resourceVersion" : "12" } }`:                  "12",
		`{"data":{"metadata":{"resourceVersion":"1"}},"metadata":{"resourceVersion":"12"}}`:            "12",
		`{"data":{"resourceVersion":"1"},"metadata":{"uid":"u","resourceVersion":"12"}}`:               "12",
		`{"data":["metadata",{"resourceVersion":"1"}],"metadata":{"resourceVersion":"12"}}`:            "12",
		`{"kind":"metadata","x":{"resourceVersion":"1"},"metadata":{"resourceVersion":"12"}}`:          "12",
		`{"metadata":{"a":"resourceVersion","b":"1","resourceVersion":"12"}}`:                          "12",
		`{"metadata":{"labels":{"resourceVersion":"1"},"resourceVersion":"12"}}`:                       "12",
		`{"metadata":{"finalizers":["resourceVersion","1"],"resourceVersion":"12"}}`:                   "12",
		`{"x":"a\\\"},{\"metadata\":{\"resourceVersion\":\"1\"}","metadata":{"resourceVersion":"12"}}`: "12",
		`{"x":"\\","metadata":{"resourceVersion":"12"}}`:                                               "12",
		`{"metadata":["resourceVersion","1"]}`:                                                         "",
		`{"metadata":{},"spec":{"resourceVersion":"1"}}`:                                               "",
		`{"metadata":null,"spec":{"resourceVersion":"1"}}`:                                             "",
		`{"metadata":{"resourceVersion":null,"name":"a"}}`:                                             "",
		`{"status":{"metadata":{"resourceVersion":"1"}}}`:                                              "",
		`"metadata"`: "",
		``:           "",
	} {
		for at := range len(object) + 1 {
			if got := versionOf(object, at); got != want {
				t.Errorf("%s, split at %d: got %q, want %q", object, at, got, want)
			}
		}
	}
}

// Random objects have the same version as for the standard library.
func TestJSONVersion_AgreesWithTheStandardLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{"metadata", "resourceVersion", "name", `a"b\`, "{", "}", "[", ",", ":", "12", "ü", "\n"}
	word := func() string { return words[random.IntN(len(words))] }
	var value func(depth int) any
	value = func(depth int) any {
		kind := random.IntN(6)
		switch {
		case kind == 0 && depth < 4:
			return []any{value(depth + 1), value(depth + 1)}
		case kind < 3 && depth < 4:
			object := map[string]any{}
			for range random.IntN(4) {
				object[word()] = value(depth + 1)
			}
			return object
		case kind == 3:
			return random.IntN(100)
		}
		return word()
	}
	for range 2000 {
		object := map[string]any{"spec": value(1), word(): value(1), "metadata": map[string]any{
			"resourceVersion": fmt.Sprint(random.IntN(1000)), "labels": value(2), "x" + word(): word(),
		}}
		encoded, err := json.Marshal(object)
		wantNoError(t, err)
		var decoded struct {
			Metadata struct{ ResourceVersion string }
		}
		wantNoError(t, json.Unmarshal(encoded, &decoded))
		if got := versionOf(string(encoded), random.IntN(len(encoded))); got != decoded.Metadata.ResourceVersion {
			t.Fatalf("%s: got %q, want %q", encoded, got, decoded.Metadata.ResourceVersion)
		}
	}
}

// The response to a write is usually a few kilobytes long, and is decoded by the client, too.
func BenchmarkJSONVersion(b *testing.B) {
	object := []byte(`{"apiVersion":"v1","data":{"text":"` + strings.Repeat("lorem ipsum ", 200) +
		`"},"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"12"}}`)
	b.Run("reader", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if version, _ := (&jsonVersion{}).read(object, true); version != "12" {
				b.Fatal(version)
			}
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var decoded struct {
				Metadata struct{ ResourceVersion string }
			}
			if err := json.NewDecoder(bytes.NewReader(object)).Decode(&decoded); err != nil {
				b.Fatal(err)
			}
		}
	})
}
