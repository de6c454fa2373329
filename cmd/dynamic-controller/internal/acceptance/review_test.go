package acceptance

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// wheelCRD is the CustomResourceDefinition of wheels. They have the field spec.size.
func wheelCRD() *apiextensionsv1.CustomResourceDefinition {
	object := func(name string, property apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{name: property},
		}
	}
	described := object("spec", object("size", apiextensionsv1.JSONSchemaProps{Type: "integer"}))
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "wheels.parts.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: wheel.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "wheels", Kind: wheel.Kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: wheel.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &described},
			}},
		},
	}
}

func TestReview_DistinguishesPermanentProblems(t *testing.T) {
	const (
		unknownName = "spec.resources[0].template.data: ${nothing}: unknown name \"nothing\""
		unknownKind = "spec.resources[1].template: unknown kind Missing in parts.example.com/v1"
	)
	wrong := func(b *blueprint.Blueprint) { b.Spec.Resources[0].Template["data"] = "${nothing}" }
	missing := func(b *blueprint.Blueprint) {
		other := making("Missing").Resources[0]
		other.ID = "b"
		b.Spec.Resources = append(b.Spec.Resources, other)
	}
	published := func(c *Config) {
		described, err := blueprint.SchemaOf(wheelCRD(), wheel.Version)
		if err != nil {
			t.Fatal(err)
		}
		c.Schemas = &fakeSchemas{described: described, name: "a"}
	}
	builtIn := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	foreign := madeFor(t, generations("Wheel")[0], "")
	foreign.Annotations = nil
	incompatible := generations("Wheel")[0]
	incompatible.Spec.Type.Schema = withFields(1, "size").Spec.Type.Schema
	for name, test := range map[string]struct {
		change    []func(*blueprint.Blueprint)
		configure func(*Config)
		crds      []*apiextensionsv1.CustomResourceDefinition
		others    []*blueprint.Blueprint
		reason    string
		want      []string // parts of the message
		permanent bool
	}{
		"a correct Blueprint": {},
		"an unknown name in an expression": {
			change: []func(*blueprint.Blueprint){wrong}, reason: reasonInvalid, want: []string{unknownName}, permanent: true,
		},
		"an unknown kind": {
			change: []func(*blueprint.Blueprint){missing}, reason: reasonInvalid, want: []string{unknownKind},
		},
		"an unknown kind, and an unknown name": {
			change: []func(*blueprint.Blueprint){wrong, missing}, reason: reasonInvalid,
			want: []string{unknownName, unknownKind}, permanent: true,
		},
		"the reserved type": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Type.Group, b.Spec.Type.Kind = "platform.example.com", "Blueprint"
			}},
			reason: reasonInvalid, want: []string{"spec.type: Blueprint is reserved for the platform"}, permanent: true,
		},
		"a type in the platform's API group": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) { b.Spec.Type.Group = "platform.example.com" }},
			reason: reasonInvalid, want: []string{"the API group platform.example.com and its subdomains are reserved"},
			permanent: true,
		},
		"a type in a subdomain of the platform's API group": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Type.Group = "status.platform.example.com"
			}},
			reason: reasonInvalid, want: []string{"use another group"}, permanent: true,
		},
		"an existing type in the platform's API group": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Type = blueprint.Type{CRD: "wheels.platform.example.com"}
			}},
			reason: reasonInvalid, want: []string{"use another group"}, permanent: true,
		},
		"a group whose name only ends like the platform's": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) { b.Spec.Type.Group = "myplatform.example.com" }},
		},
		"a field that a custom type does not have": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Resources[0].Template["spec"] = map[string]any{"sice": int64(1)}
			}},
			crds:   []*apiextensionsv1.CustomResourceDefinition{wheelCRD()},
			reason: reasonInvalid, want: []string{"spec.resources[0].template.spec.sice: unknown field", "did you mean size?"},
		},
		"a field that a kind of an aggregated API does not have": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Resources[0].Template["spec"] = map[string]any{"sice": int64(1)}
			}},
			configure: published,
			reason:    reasonInvalid, want: []string{"spec.resources[0].template.spec.sice: unknown field"},
		},
		"a field that a built-in kind does not have": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				template := b.Spec.Resources[0].Template
				template["apiVersion"], template["kind"] = builtIn.ToAPIVersionAndKind()
				template["spec"] = map[string]any{"sice": int64(1)}
			}},
			configure: published,
			reason:    reasonInvalid, want: []string{"spec.resources[0].template.spec.sice: unknown field"}, permanent: true,
		},
		"a built-in kind that cannot be watched": {
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				template := b.Spec.Resources[0].Template
				template["apiVersion"], template["kind"] = builtIn.ToAPIVersionAndKind()
			}},
			configure: func(c *Config) {
				supported := c.Mapper.(platformtest.Mapper).Supported
				supported[builtIn.GroupVersion().WithResource("configmaps")] = []string{"create", "delete", "get", "list", "patch"}
			},
			reason: reasonInvalid, want: []string{"does not support watch for ConfigMap"}, permanent: true,
		},
		"a kind of an aggregated API that cannot be watched": {
			configure: func(c *Config) {
				wheels, _ := meta.UnsafeGuessKindToResource(wheel)
				c.Mapper.(platformtest.Mapper).Supported[wheels] = []string{"create", "delete", "get", "list", "patch"}
			},
			reason: reasonInvalid, want: []string{"does not support watch for Wheel"},
		},
		"a missing permission": {
			configure: func(c *Config) { c.Reviews = &answers{} }, reason: reasonPermission,
			want: []string{"spec.type: the platform has no permission to get"},
		},
		"a type of another Blueprint": {
			others: []*blueprint.Blueprint{generations("Wheel")[0]},
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Name, b.UID, b.CreationTimestamp = "other", "other", metav1.Now()
			}},
			reason: reasonClaimed, want: []string{"is already claimed by Blueprint websites"},
		},
		"a type of a deleted Blueprint that is still cached": {
			others: []*blueprint.Blueprint{generations("Wheel")[0]},
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.UID, b.CreationTimestamp = "other", metav1.Now()
			}},
		},
		"an existing type": {
			crds: []*apiextensionsv1.CustomResourceDefinition{foreign}, reason: reasonNotOwned,
			want: []string{"was not created by the platform"},
		},
		"an existing type, and an unknown name": {
			crds:   []*apiextensionsv1.CustomResourceDefinition{foreign},
			change: []func(*blueprint.Blueprint){wrong}, reason: reasonInvalid, want: []string{unknownName}, permanent: true,
		},
		"an incompatible change": {
			crds:   []*apiextensionsv1.CustomResourceDefinition{madeFor(t, incompatible, "u")},
			reason: reasonIncompatible, want: []string{"spec.type.schema"},
		},
		"too little memory": {
			configure: func(c *Config) { c.MaxMemory = 1 }, reason: reasonBudget, want: []string{"spec: about"},
		},
		"too little memory to compile the spec, which has an unknown name": {
			configure: func(c *Config) { c.MaxMemory = 1 }, change: []func(*blueprint.Blueprint){wrong},
			reason: reasonBudget, want: []string{"spec: about"},
		},
		"enough memory": {
			configure: func(c *Config) { c.MaxMemory = 1 << 30 },
		},
		"enough memory for a larger spec": {
			others:    []*blueprint.Blueprint{generations("Wheel")[0]},
			configure: func(c *Config) { c.MaxMemory = 1 << 30 },
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Resources[0].Template["data"] = strings.Repeat("a", 1000)
			}},
		},
		"a cluster-scoped type with --namespaces": {
			configure: func(c *Config) { c.Namespaces = []string{"shop"} },
			change: []func(*blueprint.Blueprint){func(b *blueprint.Blueprint) {
				b.Spec.Type.Scope = apiextensionsv1.ClusterScoped
				b.Spec.Resources[0].Template["metadata"] = map[string]any{"name": "a", "namespace": "shop"}
			}},
			reason: reasonInvalid, want: []string{"spec.type: must be namespaced"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newTestController(asObjects(t, test.others), test.crds, wheel, builtIn)
			if test.configure != nil {
				test.configure(&p.config)
				p.forgetDecisions()
			}
			b := generations("Wheel")[0]
			for _, change := range test.change {
				change(b)
			}
			got, err := p.Review(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			if got.Reason != test.reason || got.Permanent != test.permanent {
				t.Errorf("got %+v, want the reason %q, permanent %t", got, test.reason, test.permanent)
			}
			lacks := func(text string) bool { return !strings.Contains(got.Message, text) }
			if slices.ContainsFunc(test.want, lacks) {
				t.Errorf("got the message %q, want %q", got.Message, test.want)
			}
			if all, err := p.definitions.validator.claims.all(); err != nil || len(all) != len(test.others) {
				t.Errorf("got %d claims after the review (%v)", len(all), err)
			}
		})
	}
}

func asObjects(t *testing.T, blueprints []*blueprint.Blueprint) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, b := range blueprints {
		all = append(all, asObject(t, b))
	}
	return all
}

func TestReview_ReturnsTheMessageOfTheCondition(t *testing.T) {
	b := generations("Missing")[0]
	b.Spec.Resources[0].Template["data"] = "${nothing}"
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)}, nil)
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
		t.Fatal(err)
	}
	d, _ := p.registry.get(b.Name)
	got, err := p.Review(t.Context(), b)
	if err != nil || got != (Verdict{d.rejection.reason, d.rejection.message, true}) {
		t.Errorf("got %+v, %v; the rejection is %+v", got, err, d.rejection)
	}
}

// unsynced is a mapper that has not synced.
type unsynced struct{ platformtest.Mapper }

func (unsynced) HasSynced() bool { return false }

func TestReview_FailsIfTheBlueprintCannotBeChecked(t *testing.T) {
	for name, configure := range map[string]func(*testController, *Config){
		"the kinds are not known":        func(p *testController, c *Config) { c.Mapper = unsynced{p.mapper} },
		"the schemas cannot be read":     func(p *testController, _ *Config) { p.schemas.err = errors.New("broken") },
		"the definitions are not cached": func(p *testController, _ *Config) { p.engine.SecondaryErr = errors.New("broken") },
		"permissions cannot be reviewed": func(_ *testController, c *Config) {
			c.Reviews = &answers{err: errors.New("broken")}
		},
	} {
		p, _ := newTestController(nil, nil, wheel)
		configure(p, &p.config)
		p.forgetDecisions()
		if got, err := p.Review(t.Context(), generations("Wheel")[0]); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
