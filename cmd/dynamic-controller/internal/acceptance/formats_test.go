package acceptance

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// VERSIONING.md lists the formats. A revision that this version has stored can be served by the one before it.
func TestFormats_RevisionIsReadAndWrittenAsBefore(t *testing.T) {
	const file = "testdata/revision-1.yaml"
	b := generations("Wheel")[0]
	name, err := revisionName(b)
	if err != nil {
		t.Fatal(err)
	}
	object, err := newRevision("system", name, b, 3)
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(object.Object)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("this version stores another revision than %s:\n%s", file, got)
	}
	stored := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON(want)
	if err == nil {
		err = stored.UnmarshalJSON(data) // integers remain integers
	}
	if err != nil {
		t.Fatal(err)
	}
	read, err := readRevision(stored)
	if err != nil {
		t.Fatal(err)
	}
	if r := read.(*revision); r.blueprint != b.Name || r.blueprintUID != b.UID || r.generation != b.Generation ||
		r.number != 3 || len(r.kinds) == 0 {
		t.Errorf("got %+v", r)
	}
}
