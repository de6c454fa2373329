package ownership

import (
	"encoding/json"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// newObject returns an object with the given data and managedFields, both as JSON.
func newObject(t *testing.T, data, managedFields string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion": "example.com/v1", "kind": "Thing", "data": %s,
		"metadata": {"name": "a", "managedFields": %s}}`, data, managedFields)
	if err := json.Unmarshal([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// entry returns an entry of managedFields as JSON.
func entry(manager string, operation metav1.ManagedFieldsOperationType, version, fields string) string {
	return fmt.Sprintf(`{"manager": %q, "operation": %q, "apiVersion": %q, "fieldsType": "FieldsV1",
		"fieldsV1": {"f:data": %s}}`, manager, operation, version, fields)
}

func parse(t *testing.T, data, managedFields string) Entries {
	t.Helper()
	entries, err := Of(newObject(t, data, managedFields))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// text returns the fields of each entry.
func text(t *testing.T, entries Entries) (all []string) {
	t.Helper()
	fields, err := entries.ManagedFields()
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range fields {
		entry := each.(map[string]any)
		fields, err := json.Marshal(entry["fieldsV1"])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %s %s %s", entry["manager"], entry["operation"], entry["apiVersion"], fields))
	}
	return all
}

func check(t *testing.T, entries Entries, want ...string) {
	t.Helper()
	if got := text(t, entries); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func item(name string) fieldpath.Path {
	return fieldpath.MakePathOrDie("data", "list", fieldpath.KeyByFields("name", name))
}

func TestTransfer(t *testing.T) {
	entries := parse(t, `{}`, "["+entry("we", "Apply", "example.com/v1", `{"f:a": {}}`)+","+
		entry("they", "Update", "example.com/v1",
			`{"f:list": {"k:{\"name\":\"x\"}": {".": {}, "f:name": {}}, "k:{\"name\":\"y\"}": {}}}`)+"]")
	check(t, entries.Transfer("we", item("x")),
		`we Apply example.com/v1 {"f:data":{"f:a":{},"f:list":{"k:{\"name\":\"x\"}":{".":{},"f:name":{}}}}}`,
		`they Update example.com/v1 {"f:data":{"f:list":{"k:{\"name\":\"y\"}":{}}}}`)
	transferred := entries.Transfer("we", item("x"))
	check(t, transferred.Restore(entries, "we", []fieldpath.Path{item("x")}), text(t, entries)...)
	check(t, entries.Transfer("others", item("x")), text(t, entries)...)
	if n := len(entries.OwnersOf(item("x"))); n != 1 {
		t.Errorf("the entries were changed: %d owners", n)
	}
}

func TestRelease(t *testing.T) {
	entries := parse(t, `{}`, "["+entry("we", "Apply", "example.com/v1", `{"f:a": {}}`)+","+
		entry(BeforeFirstApply, "Update", "example.com/v1", `{".": {}, "f:a": {}, "f:b": {}}`)+"]")
	released, changed := entries.Release(BeforeFirstApply, "we")
	if !changed {
		t.Error("nothing was released")
	}
	check(t, released, `we Apply example.com/v1 {"f:data":{"f:a":{}}}`,
		BeforeFirstApply+` Update example.com/v1 {"f:data":{".":{},"f:b":{}}}`)
	if _, changed := released.Release(BeforeFirstApply, "we"); changed {
		t.Error("released twice")
	}
}

func TestMoveTo(t *testing.T) {
	const data = `{"a": 1, "list": [{"name": "x"}], "set": ["p"]}`
	v1 := schema.GroupVersion{Group: "example.com", Version: "v1"}
	entries := parse(t, data, "["+entry("we", "Apply", "example.com/v1alpha1", `{"f:a": {}, "f:gone": {}}`)+","+
		entry("they", "Update", "example.com/v1alpha1",
			`{"f:list": {"k:{\"name\":\"x\"}": {}, "k:{\"name\":\"y\"}": {}}, "f:set": {"v:\"p\"": {}}}`)+","+
		entry("they", "Update", "example.com/v1", `{"f:a": {}}`)+","+
		entry("scale", "Update", "autoscaling/v1", `{"f:a": {}}`)+"]")
	all := func(Entry, schema.GroupVersion) bool { return true }
	moved, changed := entries.MoveTo(v1, newObject(t, data, "[]").Object, all)
	if !changed {
		t.Error("nothing was moved")
	}
	check(t, moved, `we Apply example.com/v1 {"f:data":{"f:a":{}}}`,
		`they Update example.com/v1 {"f:data":{"f:a":{},"f:list":{"k:{\"name\":\"x\"}":{}},"f:set":{"v:\"p\"":{}}}}`,
		`scale Update autoscaling/v1 {"f:data":{"f:a":{}}}`)
	if _, changed := moved.MoveTo(v1, nil, all); changed {
		t.Error("entries of the same version were moved")
	}
	none := func(Entry, schema.GroupVersion) bool { return false }
	if _, changed := entries.MoveTo(v1, nil, none); changed {
		t.Error("entries were moved that must stay")
	}
}

func TestOf_InvalidFields(t *testing.T) {
	if _, err := Of(newObject(t, `{}`, "["+entry("they", "Update", "v1", `[1]`)+"]")); err == nil {
		t.Error("got no error")
	}
}
