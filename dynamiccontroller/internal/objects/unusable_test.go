package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const header = `"name":"a","namespace":"n","uid":"u","resourceVersion":"5"`

// Everything that the decoding methods cannot handle is rejected, so that a lister never fails because of one object.
func TestParseItem_UnusableItemKeepsItsIdentity(t *testing.T) {
	object := func(metadata string) string { return `{"kind":"K","metadata":{` + metadata + `}}` }
	for name, test := range map[string]struct{ item, key, uid, version string }{
		"null":                     {`null`, "", "", ""},
		"a number":                 {`5`, "", "", ""},
		"no metadata":              {`{"kind":"K"}`, "", "", ""},
		"metadata is a string":     {`{"kind":"K","metadata":"x"}`, "", "", ""},
		"metadata is null":         {`{"kind":"K","metadata":null}`, "", "", ""},
		"no name":                  {object(`"namespace":"n","uid":"u","resourceVersion":"5"`), "", "u", "5"},
		"name is a number":         {object(`"name":1,"uid":"u"`), "", "u", ""},
		"name has a slash":         {object(`"name":"a/b","uid":"u"`), "", "u", ""},
		"namespace has a slash":    {object(`"name":"a","namespace":"a/b","uid":"u"`), "", "u", ""},
		"namespace is a number":    {object(`"name":"a","namespace":1,"uid":"u"`), "", "u", ""},
		"uid is a number":          {object(`"name":"a","namespace":"n","uid":1`), "n/a", "", ""},
		"version is a number":      {object(`"name":"a","namespace":"n","uid":"u","resourceVersion":5`), "n/a", "u", ""},
		"kind is a number":         {`{"kind":1,"metadata":{` + header + `}}`, "n/a", "u", "5"},
		"no kind":                  {`{"metadata":{` + header + `}}`, "n/a", "u", "5"},
		"labels are an array":      {object(header + `,"labels":[]`), "n/a", "u", "5"},
		"a label is a number":      {object(header + `,"labels":{"a":1}`), "n/a", "u", "5"},
		"an annotation is a map":   {object(header + `,"annotations":{"a":{}}`), "n/a", "u", "5"},
		"generation is a string":   {object(header + `,"generation":"7"`), "n/a", "u", "5"},
		"finalizers are a string":  {object(header + `,"finalizers":"x"`), "n/a", "u", "5"},
		"an owner is a string":     {object(header + `,"ownerReferences":["x"]`), "n/a", "u", "5"},
		"controller is a string":   {object(header + `,"ownerReferences":[{"controller":"x"}]`), "n/a", "u", "5"},
		"an owner's UID is number": {object(header + `,"ownerReferences":[{"uid":1}]`), "n/a", "u", "5"},
		"invalid creation":         {object(header + `,"creationTimestamp":"yesterday is no time"`), "n/a", "u", "5"},
		"invalid deletion":         {object(header + `,"deletionTimestamp":"now"`), "n/a", "u", "5"},
	} {
		if !json.Valid([]byte(test.item)) {
			t.Fatalf("%s: not JSON", name)
		}
		r := ParseItem([]byte(test.item), Full, metav1.TypeMeta{})
		key, uid := r.Identity()
		if r.Unusable() == nil || key != test.key || string(uid) != test.uid || r.GetResourceVersion() != test.version {
			t.Errorf("%s: got key %q, UID %q, version %q, reason %v", name, key, uid, r.GetResourceVersion(), r.Unusable())
		}
		if r.Key() == "" {
			t.Errorf("%s: the key is empty", name)
		}
	}
}

func TestParseItem_NumberOutOfRangeIsUnusableIfItIsKept(t *testing.T) {
	for _, number := range []string{"1e999", "-1E+400", strings.Repeat("9", 309)} {
		item := []byte(`{"kind":"K","metadata":{` + header + `},"spec":{"a":["1e999",{"n":` + number + `}]}}`)
		for projection, unusable := range map[Projection]bool{Keys: false, Metadata: false, Full: true, Complete: true} {
			if r := ParseItem(item, projection, metav1.TypeMeta{}); (r.Unusable() != nil) != unusable {
				t.Errorf("%.10s, projection %d: got %v", number, projection, r.Unusable())
			}
		}
	}
}

func TestParseItem_UsableItems(t *testing.T) {
	for name, rest := range map[string]string{
		"plain":          ``,
		"null fields":    `,"labels":null,"ownerReferences":null,"creationTimestamp":null,"generation":null`,
		"a null label":   `,"labels":{"a":null}`,
		"rare fields":    `,"deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":3,"finalizers":["a"]`,
		"two owners":     `,"ownerReferences":[{"uid":"a","controller":true},{"uid":"b"}]`,
		"large integers": `,"generation":9223372036854775807`,
		"unknown fields": `,"clusterName":1`,
		"managedFields":  `,"managedFields":[{"time":"never"}]`,
	} {
		item := `{"kind":"K","metadata":{` + header + rest + `},"spec":{"n":123456789012345678901234567890,"e":1e300}}`
		r := ParseItem([]byte(item), Complete, metav1.TypeMeta{})
		if r.Unusable() != nil {
			t.Errorf("%s: %v", name, r.Unusable())
			continue
		}
		if _, err := r.Decode(Full); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A streaming list is collected in a map. No item may replace another one there.
func TestParseItem_UnidentifiedItemsHaveDifferentKeys(t *testing.T) {
	keys := map[string]bool{}
	const first, second = `{"kind":"K","metadata":{"uid":"1"}}`, `{"kind":"K","metadata":{"uid":"2"}}`
	for _, item := range []string{`null`, `null`, first, second} {
		keys[ParseItem([]byte(item), Keys, metav1.TypeMeta{}).Key()] = true
	}
	if len(keys) != 4 {
		t.Errorf("got keys %v", keys)
	}
	next := unidentified.Load() + 1
	uid := fmt.Appendf(nil, `{"kind":"K","metadata":{"uid":"%d"}}`, next)
	numbered := ParseItem([]byte(`null`), Keys, metav1.TypeMeta{})
	if key := ParseItem(uid, Keys, metav1.TypeMeta{}).Key(); key == numbered.Key() {
		t.Errorf("the UID %d leads to the key of an object without a UID: %q", next, key)
	}
}

func TestParseItem_RecordOfAnUnusableItemIsSmall(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, metadata := range []string{
		`"name":"/` + long + `"`, `"name":"` + long + `","labels":1`, `"name":"a","namespace":"` + long + `","labels":1`,
		`"uid":"` + long + `"`, `"resourceVersion":"` + long + `"`, header + `,"creationTimestamp":"` + long + `"`,
	} {
		r := ParseItem([]byte(`{"kind":"K","metadata":{`+metadata+`}}`), Full, metav1.TypeMeta{})
		if r.Unusable() == nil || r.Size() > 4<<10 || len(r.Unusable().Error()) > 300 {
			t.Errorf("%.30s: %d bytes, reason %.50v", metadata, r.Size(), r.Unusable())
		}
	}
}

func TestUnusable_DecodedObject(t *testing.T) {
	reason := errors.New("unusable")
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "a", "namespace": "n", "uid": "u"},
	}}
	if key, uid := Unusable(u, reason).Identity(); key != "n/a" || uid != "u" {
		t.Errorf("got %q, %q", key, uid)
	}
	u.SetName("")
	if key, uid := Unusable(u, reason).Identity(); key != "" || uid != "u" {
		t.Errorf("got %q, %q", key, uid)
	}
	r := Unusable("not an object", reason)
	if key, uid := r.Identity(); key != "" || uid != types.UID("") || !errors.Is(r.Unusable(), reason) {
		t.Errorf("got %q, %q, %v", key, uid, r.Unusable())
	}
}

func TestEncode_KeyIsUnknownIfTheNamespaceIsANumber(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"kind": "K", "metadata": map[string]any{"name": "a", "namespace": int64(1), "uid": "u"},
	}}
	for projection := Keys; projection <= Complete; projection++ {
		_, err := Encode(u, projection, "")
		if err == nil {
			t.Errorf("projection %d: no error", projection)
			continue
		}
		if key, uid := Unusable(u, err).Identity(); key != "" || uid != "u" {
			t.Errorf("projection %d: got %q, %q", projection, key, uid)
		}
	}
}
