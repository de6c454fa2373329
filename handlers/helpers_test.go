package handlers

import (
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

type (
	identifiers = dynamiccontroller.ObjectIdentifiers
	handler     = dynamiccontroller.Handler
)

var (
	widgets    = fakeserver.Widgets
	configMaps = fakeserver.ConfigMaps
	first      = fakeserver.First

	newFakeServer = fakeserver.New
	newWidget     = fakeserver.NewWidget
)

func newConditions(t *testing.T, server *controllertest.Server) *Conditions {
	t.Helper()
	conditions, err := NewConditions(ConditionsConfig{Client: server, FieldManager: "m"})
	if err != nil {
		t.Fatal(err)
	}
	return conditions
}
