package main

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/tracing"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// At V(1), each reconcile of both engines is logged with its outcome and its ID.
func TestObserved_LogsReconciles(t *testing.T) {
	observed := (&engines{parked: &status.ParkedKeys{}}).observed(nil, func() int64 { return 7 })
	for name, engine := range map[string]instances.Engine{
		"definitions": observed.Definitions, "instances": observed.Instances,
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1})
			handler := engine.(observedEngine).middleware(
				func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
			ctx := logr.NewContext(t.Context(), tracing.NewLogger(log))
			if err := handler(ctx, dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/a"}); err != nil {
				t.Error(err)
			}
			if len(lines) != 1 || !strings.Contains(lines[0], `"msg"="Reconciled" "outcome"="done"`) ||
				!strings.Contains(lines[0], `"reconcileID"=`) {
				t.Errorf("logged %q, want one line with the outcome and the ID", lines)
			}
		})
	}
}
