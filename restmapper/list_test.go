package restmapper

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/consistencydetector"
)

// A connection can be cut at any byte. If the mapper took a part of a list for the complete list, it would remove the
// other CRDs.
func TestDecodeList_RejectsEveryIncompleteBody(t *testing.T) {
	body := `{"kind":"CustomResourceDefinitionList","apiVersion":"apiextensions.k8s.io/v1",` +
		`"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"other":{"c":[1]}}`
	w := (&Mapper{}).newCRDWatcher()
	for end := range len(body) {
		list := &metainternalversion.List{}
		if err := w.decodeList(json.NewDecoder(strings.NewReader(body[:end])), list); err == nil {
			t.Errorf("no error for %s", body[:end])
		}
	}
	list := &metainternalversion.List{}
	err := w.decodeList(json.NewDecoder(strings.NewReader(body)), list)
	if err != nil || len(list.Items) != 2 || list.ResourceVersion != "7" {
		t.Errorf("got %+v, %v", list, err)
	}
}

// With KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=true, client-go compares each streaming list with a plain list, and panics
// if they differ.
func TestStreamingList_PassesTheConsistencyCheck(t *testing.T) {
	defer consistencydetector.SetDataConsistencyDetectionForWatchListEnabledForTest(true)()
	crds := &largeCRDs{count: 50, schemas: []byte(`{}`), watchList: true}
	server := httptest.NewServer(crds)
	defer server.Close()
	defer server.CloseClientConnections()
	m, err := New(logr.Discard(), &rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	if _, err := m.WaitForMapping(ctx, schema.GroupKind{Group: "g49.example.com", Kind: "Widget"}); err != nil {
		t.Error(err)
	}
	if crds.exactLists.Load() == 0 {
		t.Error("client-go has not compared the lists")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
