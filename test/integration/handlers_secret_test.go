package integration

import (
	"encoding/base64"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func newSecret(name string, values map[string]any) *unstructured.Unstructured {
	object := newObject(secrets, "Secret", "", name, nil)
	object.Object["stringData"] = values
	return object
}

// secretData returns the decoded data of a Secret.
func (h *harness) secretData(name string) map[string]string {
	h.Helper()
	data, _, err := unstructured.NestedStringMap(h.get(secrets, h.namespace, name).Object, "data")
	h.noError(err)
	values := map[string]string{}
	for key, value := range data {
		decoded, err := base64.StdEncoding.DecodeString(value)
		h.noError(err)
		values[key] = string(decoded)
	}
	return values
}

// The API server moves values from stringData to data. The reconciler must still correct drift in data.
func TestHandlers_StringDataDriftIsCorrected(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Secret"}}}
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconciler := s.newReconciler(children.Config{})
	reconcile := func(want map[string]string, values map[string]any) {
		t.Helper()
		for range 2 {
			_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage(newSecret("s", values)))
			h.noError(ignoreRequeue(err))
		}
		if got := h.secretData("s"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the Secret has %v, want %v", got, want)
		}
	}
	initial := map[string]any{"password": "one", "user": "me"}
	reconcile(map[string]string{"password": "one", "user": "me"}, initial)
	h.merge(secrets, h.namespace, "s", `{"stringData":{"password":"drifted","other":"kept"}}`)
	reconcile(map[string]string{"password": "one", "user": "me", "other": "kept"}, initial)
	h.merge(secrets, h.namespace, "s", `{"data":{"user":null}}`)
	reconcile(map[string]string{"password": "one", "user": "me", "other": "kept"}, initial)
	reconcile(map[string]string{"password": "two", "other": "kept"}, map[string]any{"password": "two"})
	before := h.get(secrets, h.namespace, "s").GetResourceVersion()
	reconcile(map[string]string{"password": "two", "other": "kept"}, map[string]any{"password": "two"})
	if now := h.get(secrets, h.namespace, "s").GetResourceVersion(); now != before {
		t.Error("the Secret was written without a change")
	}
	reconcile(map[string]string{"other": "kept"}, map[string]any{})
}
