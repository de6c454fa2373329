package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// greeter is a typical reconciler for controller-runtime.
type greeter struct {
	client.Client
}

var _ reconcile.Reconciler = greeter{}

// Reconcile greets the name in a Greeting.
func (g greeter) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	greeting := &unstructured.Unstructured{}
	greeting.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Greeting"})
	if err := g.Get(ctx, request.NamespacedName, greeting); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	name, _, err := unstructured.NestedString(greeting.Object, "spec", "name")
	if err != nil {
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	fmt.Printf("Hello, %s! This is %s\n", name, request)
	return reconcile.Result{}, nil
}
