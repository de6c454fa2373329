package integration

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func newSecret(name string, texts map[string]any) *unstructured.Unstructured {
	object := newObject(secrets, "Secret", "", name, nil)
	object.Object["stringData"] = texts
	return object
}

// textsOf decodes the data of a Secret.
func (h *harness) textsOf(name string) map[string]string {
	h.Helper()
	data, _, err := unstructured.NestedStringMap(h.get(secrets, h.namespace, name).Object, "data")
	h.noError(err)
	texts := map[string]string{}
	for key, value := range data {
		text, err := base64.StdEncoding.DecodeString(value)
		h.noError(err)
		texts[key] = string(text)
	}
	return texts
}

// The wanted stringData is stored as data: it is corrected when it drifts, removed when it is no longer wanted, and
// nothing is written when nothing changed.
func TestHandlers_SecretsWrittenAsStringDataAreKept(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	children := s.newChildren(handlers.ChildrenConfig{})
	reconcile := func(want map[string]string, texts map[string]any) {
		t.Helper()
		for range 2 {
			_, err := children.Reconcile(t.Context(), s.parent("p"), parent, stages(newSecret("s", texts)))
			h.noError(ignoreRequeue(err))
		}
		if got := h.textsOf("s"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the Secret has %v, want %v", got, want)
		}
	}
	reconcile(map[string]string{"password": "one", "user": "me"}, map[string]any{"password": "one", "user": "me"})
	h.merge(secrets, h.namespace, "s", `{"stringData":{"password":"drifted","others":"stay"}}`)
	reconcile(map[string]string{"password": "one", "user": "me", "others": "stay"}, map[string]any{"password": "one", "user": "me"})
	h.merge(secrets, h.namespace, "s", `{"data":{"user":null}}`)
	reconcile(map[string]string{"password": "one", "user": "me", "others": "stay"}, map[string]any{"password": "one", "user": "me"})
	reconcile(map[string]string{"password": "two", "others": "stay"}, map[string]any{"password": "two"})
	before := h.get(secrets, h.namespace, "s").GetResourceVersion()
	reconcile(map[string]string{"password": "two", "others": "stay"}, map[string]any{"password": "two"})
	if now := h.get(secrets, h.namespace, "s").GetResourceVersion(); now != before {
		t.Error("it was written though nothing changed")
	}
	reconcile(map[string]string{"others": "stay"}, map[string]any{})
}

// A Secret that an earlier version applied with stringData keeps none of its keys that are no longer wanted, whether or not
// the cache keeps managed fields.
func TestHandlers_SecretsAppliedWithStringDataAreMigrated(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	for name, cache := range map[string]handlers.Reader{"live": nil, "cached": withoutManagedFields{handlers.Live(h.client)}} {
		parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, name, nil))
		earlier := newSecret(name, map[string]any{"password": "one", "old": "x", "shared": "ours"})
		earlier.SetNamespace(h.namespace)
		earlier.SetLabels(map[string]string{platformName + "/parent": string(parent.GetUID())})
		earlier.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(parent, parent.GroupVersionKind())})
		_, err := h.in(secrets, h.namespace).Apply(t.Context(), name, earlier, metav1.ApplyOptions{FieldManager: platformName})
		h.noError(err)
		h.merge(secrets, h.namespace, name, `{"stringData":{"shared":"theirs","more":"theirs"}}`)

		children := s.newChildren(handlers.ChildrenConfig{Cache: cache})
		for range 2 {
			_, err := children.Reconcile(t.Context(), s.parent(name), parent, stages(newSecret(name, map[string]any{"password": "two"})))
			h.noError(ignoreRequeue(err))
			if got, want := h.textsOf(name), map[string]string{"password": "two", "more": "theirs", "shared": "theirs"}; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: the Secret has %v, want %v", name, got, want)
			}
		}
	}
}

// withoutManagedFields is a cache that does not keep managed fields.
type withoutManagedFields struct{ handlers.Reader }

func (r withoutManagedFields) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	object, err := r.Reader.Get(ctx, gvr, namespace, name)
	if object != nil {
		object.SetManagedFields(nil)
	}
	return object, err
}
