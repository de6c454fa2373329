package live

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

func TestEach_ReadsAllPages(t *testing.T) {
	pages := [][]string{{"a", "b"}, {}, {"c"}}
	var limits []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		limits = append(limits, request.FormValue("limit"))
		index, _ := strconv.Atoi(request.FormValue("continue"))
		page := map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}}
		items := []any{}
		for _, name := range pages[index] {
			items = append(items, map[string]any{"metadata": map[string]any{"name": name}})
		}
		page["items"] = items
		if index++; index < len(pages) {
			page["metadata"] = map[string]any{"continue": strconv.Itoa(index)}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(page)
	}))
	defer server.Close()
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	read := func(selector labels.Selector, stopAt string) (names []string, err error) {
		limits = nil
		gvr := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		err = Each(t.Context(), client, gvr, "default", selector, func(object *unstructured.Unstructured) error {
			if names = append(names, object.GetName()); object.GetName() == stopAt {
				return errors.New("stop")
			}
			return nil
		})
		return names, err
	}
	names, err := read(labels.Everything(), "")
	allLimits := []string{"500", "500", "500"}
	if err != nil || !slices.Equal(names, []string{"a", "b", "c"}) || !slices.Equal(limits, allLimits) {
		t.Errorf("got %q with the limits %s: %v", names, limits, err)
	}
	names, err = read(labels.Everything(), "b")
	if err == nil || !slices.Equal(names, []string{"a", "b"}) || len(limits) != 1 {
		t.Errorf("after an error, got %q in %d requests: %v", names, len(limits), err)
	}
	if names, err := read(labels.Nothing(), ""); err != nil || len(names) > 0 || len(limits) > 0 {
		t.Errorf("a selector for nothing found %q in %d requests: %v", names, len(limits), err)
	}
}
