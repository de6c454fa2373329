package restmapper

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// A connection can be cut at any byte. If the mapper took a part of a list for the complete list, it would remove the
// other CRDs.
func TestDecodeList_RejectsEveryIncompleteBody(t *testing.T) {
	body := `{"kind":"CustomResourceDefinitionList","apiVersion":"apiextensions.k8s.io/v1",` +
		`"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"other":{"c":[1]}}`
	newObject := (&Mapper{}).newCRDWatcher().newObject
	decode := func(body string, item func(runtime.Object)) (metav1.ListMeta, string, error) {
		return decodeList(json.NewDecoder(strings.NewReader(body)), newObject, item)
	}
	for end := range len(body) {
		if _, _, err := decode(body[:end], func(runtime.Object) {}); err == nil {
			t.Errorf("no error for %s", body[:end])
		}
	}
	items := 0
	m, kind, err := decode(body, func(runtime.Object) { items++ })
	if err != nil || items != 2 || m.ResourceVersion != "7" || kind != "CustomResourceDefinitionList" {
		t.Errorf("got %d items, %+v, %s, %v", items, m, kind, err)
	}
}

// A CRD must not look deleted because the API server has sent something else.
func TestWatcher_RejectsOtherObjects(t *testing.T) {
	w := (&Mapper{}).newCRDWatcher()
	w.BeginList()
	event := watch.Event{Type: watch.Added, Object: &metav1.Status{}}
	if err := w.Collect(event); err == nil {
		t.Error("no error in a list")
	}
	if err := w.Apply(event); err == nil {
		t.Error("no error in a watch")
	}
}
