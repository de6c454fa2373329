package main

import (
	"context"
	"slices"
	"syscall"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
)

type crd = apiextensionsv1.CustomResourceDefinition

func labelled(c *crd)   { metav1.SetMetaDataLabel(&c.ObjectMeta, platform.Label, "true") }
func unlabelled(c *crd) { delete(c.Labels, platform.Label) }

func TestATypeIsServedWhileItCarriesTheLabel(t *testing.T) {
	a := newAPI(t)
	gadgets := a.define("gadgets", "Gadget", unlabelled)
	gadgets.write("one", 1)
	p := startServing(t, a.cluster.Kubeconfig())
	widgets := a.define("widgets", "Widget")
	widgets.write("one", 1)
	widgets.waitReady("one")
	widgets.write("one", 2)
	widgets.waitReady("one")
	if status := gadgets.get("one").Object["status"]; status != nil {
		t.Errorf("a type without the label was served: %v", status)
	}

	gadgets.redefine(labelled)
	gadgets.waitReady("one")

	gadgets.redefine(unlabelled)
	p.waitLog(line{Msg: "type released", GVR: "gadgets"})
	gadgets.write("one", 2)
	// What was written later to a type that is served was reconciled, and this was not.
	widgets.write("one", 3)
	widgets.waitReady("one")
	if isReady(gadgets.get("one")) {
		t.Error("a type that lost the label is still served")
	}
}

func TestATypeThatIsDefinedAgainIsServedAgain(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	widgets := a.define("widgets", "Widget")
	widgets.write("one", 1)
	widgets.waitReady("one")
	widgets.undefine(t.Context())
	p.waitLog(line{Msg: "type released", GVR: "widgets"})

	widgets = a.define("widgets", "Widget")
	widgets.write("one", 1)
	widgets.waitReady("one")
}

func TestATypeIsServedInItsStoredVersionOrElseItsNewest(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	widgets := a.define("widgets", "Widget", func(c *crd) {
		c.Spec.Versions = append(c.Spec.Versions, testVersion("v1beta1"), testVersion("v2"))
	})
	writtenIn := func(version string) bool {
		return slices.ContainsFunc(widgets.get("one").GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == platform.FieldManager && f.Subresource == "status" && f.APIVersion == group+"/"+version
		})
	}
	widgets.write("one", 1)
	widgets.waitReady("one")
	if !writtenIn("v1") {
		t.Error("it was not served in the stored version")
	}

	widgets.redefine(func(c *crd) { c.Spec.Versions[0].Served = false })
	p.waitLog(line{Msg: "type released", GVR: "widgets.v1."})
	widgets.version = "v1beta1"
	widgets.write("one", 2)
	widgets.waitReady("one")
	if !writtenIn("v2") {
		t.Error("it was not served in the newest version")
	}
}

func TestWhatIsUpToDateIsNotWritten(t *testing.T) {
	a := newAPI(t)
	widgets := a.define("widgets", "Widget")
	first := startServing(t, a.cluster.Kubeconfig())
	widgets.write("one", 1)
	before := widgets.waitReady("one")
	first.end(syscall.SIGTERM)

	// Another process sees it anew, and another object too.
	widgets.write("two", 1)
	second := startServing(t, a.cluster.Kubeconfig())
	second.waitLog(line{Msg: "status is up to date", Object: "default/one"})
	second.waitLog(line{Msg: "status is up to date", Object: "default/two"})
	second.end(syscall.SIGINT)
	if after := widgets.get("one"); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("it was written again: version %s became %s", before.GetResourceVersion(), after.GetResourceVersion())
	}
	if n := len(second.logged(line{Msg: "status written"})); n != 1 {
		t.Errorf("%d writes, want one", n)
	}
}

func TestAStatusThatCannotBeKeptIsSaidOnce(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	without := a.define("gizmos", "Gizmo", func(c *crd) { c.Spec.Versions[0].Subresources = nil })
	pruned := a.define("gadgets", "Gadget", func(c *crd) {
		delete(c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties, "status")
	})
	widgets := a.define("widgets", "Widget")
	for size := range 3 {
		for _, d := range []*definedType{without, pruned, widgets} {
			d.write("one", size)
			d.write("two", size)
		}
		widgets.waitReady("one")
		widgets.waitReady("two")
	}

	p.loggedOnce(line{Level: "error", CRD: "gizmos." + group, Problem: "version v1 has no status subresource"})
	p.loggedOnce(line{Level: "error", CRD: "gadgets." + group, Problem: "the schema of version v1 has no status"})
	if got := p.logged(line{Level: "error"}); len(got) != 2 {
		t.Errorf("%d errors, want two: %+v", len(got), got)
	}

	without.redefine(func(c *crd) { c.Spec.Versions[0].Subresources = testVersion("v1").Subresources })
	without.waitReady("one")
	pruned.redefine(func(c *crd) { c.Spec.Versions[0].Schema = testVersion("v1").Schema })
	pruned.waitReady("one")
}

func TestTheProcessOutlivesItsAPIServer(t *testing.T) {
	a := newAPI(t)
	if _, err := a.cluster.APIServer().PID(); err != nil {
		t.Skip(err)
	}
	startServing(t, a.cluster.Kubeconfig())
	widgets := a.define("widgets", "Widget")
	widgets.write("one", 1)
	widgets.waitReady("one")
	if err := a.cluster.APIServer().Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.cluster.APIServer().Start(ctx); err != nil {
		t.Fatal(err)
	}
	widgets.write("one", 2)
	widgets.waitReady("one")
}

func TestASignalEndsTheProcessThoughTheAPIServerHangs(t *testing.T) {
	a := newAPI(t)
	if _, err := a.cluster.APIServer().PID(); err != nil {
		t.Skip(err)
	}
	p := startServing(t, a.cluster.Kubeconfig())
	widgets := a.define("widgets", "Widget")
	widgets.write("one", 1)
	widgets.waitReady("one")
	if err := a.cluster.APIServer().Pause(); err != nil {
		t.Fatal(err)
	}
	resume := func() {
		if err := a.cluster.APIServer().Resume(); err != nil {
			t.Error(err)
		}
	}
	defer resume()
	if took := p.end(syscall.SIGTERM); took > patience/2 {
		t.Errorf("it took %s", took)
	}
}
