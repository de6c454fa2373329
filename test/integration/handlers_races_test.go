package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// frozen is a cache that has one object, and shows it as it was.
type frozen struct{ object *unstructured.Unstructured }

func (f frozen) Get(context.Context, schema.GroupVersionResource, string, string) (*unstructured.Unstructured, error) {
	return f.object.DeepCopy(), nil
}

func (f frozen) List(context.Context, schema.GroupVersionResource, string, labels.Selector) ([]*unstructured.Unstructured, error) {
	return nil, fmt.Errorf("it is not listed: %w", dynamiccontroller.ErrNotServed)
}

// meanwhile returns children between whose first look for a child that is not there, and its creation, something happens.
func (s *setting) meanwhile(what func()) *handlers.Children {
	s.Helper()
	var happened atomic.Bool
	config := wrapped(s.config, func(r *http.Request, send send) (*http.Response, error) {
		answer, err := send(r)
		looks := r.Method == http.MethodGet && (strings.Contains(r.URL.Path, "/configmaps/") || strings.Contains(r.URL.Path, "/gadgets/"))
		if looks && err == nil && answer.StatusCode == http.StatusNotFound && happened.CompareAndSwap(false, true) {
			what()
		}
		return answer, err
	})
	return s.newChildren(handlers.ChildrenConfig{Client: must(dynamic.NewForConfig(config))})
}

func partly(children ...*unstructured.Unstructured) handlers.Desired {
	return handlers.Desired{Stages: stages(children...).Stages, Partial: true}
}

// Whoever makes an object first has it: another parent's creation, or a user's of which no field is the same, is not
// merged with.
func TestHandlers_WhatIsMadeMeanwhileIsNotTakenOver(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	a := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "a", nil))
	b := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "b", nil))
	one := func(kind, value string) *unstructured.Unstructured {
		if kind == "ConfigMap" {
			return newConfigMap("", "both", value)
		}
		return newObject(s.gadgets, "Gadget", "", "both", map[string]any{"value": value})
	}
	for kind, gvr := range map[string]schema.GroupVersionResource{"ConfigMap": configMaps, "Gadget": s.gadgets} {
		_, err := s.meanwhile(func() {
			_, err := s.newChildren(handlers.ChildrenConfig{}).Reconcile(t.Context(), s.parent("a"), a.DeepCopy(), partly(one(kind, "a's")))
			h.noError(err)
		}).Reconcile(t.Context(), s.parent("b"), h.get(s.parents, h.namespace, "b"), partly(one(kind, "b's")))
		if !errors.Is(err, handlers.ErrNotOurs) {
			t.Errorf("the second parent of a %s got %v", kind, err)
		}
		now := h.get(gvr, h.namespace, "both")
		h.noError(isController(a, now))
		if content := fmt.Sprint(now.Object["data"], now.Object["spec"]); strings.Contains(content, "b's") {
			t.Errorf("the first parent's %s has %s", kind, content)
		}
		if now.GetDeletionGracePeriodSeconds() != nil || now.GetDeletionTimestamp() != nil {
			t.Errorf("what was made is being deleted: %v", now.Object["metadata"])
		}
	}

	_, err := s.meanwhile(func() {
		theirs := newConfigMap(h.namespace, "users", "")
		theirs.Object["data"] = map[string]any{"of": "the user"}
		h.put(configMaps, theirs)
	}).Reconcile(t.Context(), s.parent("b"), h.get(s.parents, h.namespace, "b"), partly(newConfigMap("", "users", "b's")))
	if !errors.Is(err, handlers.ErrNotOurs) {
		t.Errorf("got %v", err)
	}
	now := h.get(configMaps, h.namespace, "users")
	if metav1.IsControlledBy(now, b) || fmt.Sprint(now.Object["data"]) != "map[of:the user]" {
		t.Errorf("the user's object is %v", now.Object)
	}
}

// A child that was orphaned, of which a late pass of its dead parent still sees that it was the parent's, stays an orphan: a
// reference to an owner that is gone would be its death.
func TestHandlers_AnOrphanIsNotTakenBackByAStalePass(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	made, err := s.newChildren(handlers.ChildrenConfig{}).Reconcile(t.Context(), s.parent("p"), parent, stages(newConfigMap("", "child", "one")))
	h.noError(err)
	orphan := metav1.DeletePropagationOrphan
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{PropagationPolicy: &orphan}))
	h.eventually("the parent is gone", func() error {
		if h.get(s.parents, h.namespace, "p") != nil {
			return errors.New("it is there")
		}
		return nil
	})
	before := h.get(configMaps, h.namespace, "child")
	if len(before.GetOwnerReferences()) != 0 {
		t.Fatalf("it is no orphan: %v", before.GetOwnerReferences())
	}
	_, err = s.newChildren(handlers.ChildrenConfig{Cache: frozen{made[0]}}).Reconcile(t.Context(), s.parent("p"), parent, partly(newConfigMap("", "child", "two")))
	if err == nil {
		t.Error("no error")
	}
	if now := h.get(configMaps, h.namespace, "child"); now == nil || now.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("it was written: %v", now)
	}
}
