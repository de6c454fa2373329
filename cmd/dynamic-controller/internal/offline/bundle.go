package offline

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Options configures Validate and Render.
type Options struct {
	Stdin io.Reader
	// Cluster provides the kinds and types that are not in the files. If it is nil, only built-in kinds are used.
	Cluster *Cluster
	// AllowUnknownKinds accepts templates with unknown kinds. They are not checked against a schema.
	AllowUnknownKinds bool
}

// bundle contains the objects in the files and their problems.
type bundle struct {
	Options
	schemas    acceptance.Schemas
	mapper     meta.RESTMapper
	verbs      func(schema.GroupVersionResource) ([]string, error) // of kinds that the files do not define
	all        []document
	blueprints []*checkedBlueprint
	// crds contains the CustomResourceDefinitions in the files by name. defined contains the Blueprints by the name of the
	// CustomResourceDefinition that they define.
	crds     map[string]*apiextensionsv1.CustomResourceDefinition
	defined  map[string]*checkedBlueprint
	problems []finding
}

// checkedBlueprint is a Blueprint in a file.
type checkedBlueprint struct {
	document
	*blueprint.Blueprint
	done     bool                                      // check was called; the other fields are set when it returns
	compiled *blueprint.Compiled                       // nil if the Blueprint has problems
	crd      *apiextensionsv1.CustomResourceDefinition // nil for spec.type.crd, or if the type is invalid
}

// load reads files and checks the Blueprints.
func load(ctx context.Context, paths []string, o Options) (*bundle, error) {
	b := &bundle{
		Options: o,
		crds:    map[string]*apiextensionsv1.CustomResourceDefinition{}, defined: map[string]*checkedBlueprint{},
	}
	var err error
	if b.all, b.problems, err = readAll(paths, o.Stdin); err != nil {
		return nil, err
	}
	b.reportEmpty(paths)
	b.readCRDs()
	if err := b.readBlueprints(ctx); err != nil {
		return nil, err
	}
	b.schemas, b.mapper, b.verbs = acceptance.NewOpenAPISchemasFrom(Builtin()), builtinMapper(), builtinVerbs
	if o.Cluster != nil {
		b.schemas, b.mapper, b.verbs = o.Cluster.schemas, o.Cluster.mapper, o.Cluster.mapper.Verbs
	}
	b.mapper = meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{b.ownMapper(), b.mapper}}
	for _, j := range b.blueprints {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := b.check(ctx, j); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *bundle) report(d document, problems ...blueprint.Problem) {
	for _, p := range problems {
		b.problems = append(b.problems, d.finding(p))
	}
}

// reportEmpty reports the given files that contain nothing, or only comments. Such files in directories are ignored.
func (b *bundle) reportEmpty(paths []string) {
	for _, path := range paths {
		info, err := os.Stat(path)
		isOfFile := func(file string) bool { return filepath.Clean(file) == filepath.Clean(path) }
		if path != "-" && (err != nil || info.IsDir()) ||
			slices.ContainsFunc(b.all, func(d document) bool { return isOfFile(d.file) }) ||
			slices.ContainsFunc(b.problems, func(f finding) bool { return isOfFile(f.file) }) {
			continue
		}
		b.problems = append(b.problems, finding{path, 1, "contains no objects"})
	}
}

func (b *bundle) readCRDs() {
	kind := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	for _, d := range b.all {
		if d.GroupVersionKind() != kind {
			continue
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(d.Object, crd, true); err != nil {
			b.report(d, blueprint.Problem{Path: "spec", Reason: err.Error()})
			continue
		}
		apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
		b.crds[crd.Name] = crd
	}
}

// readBlueprints validates the Blueprints as the API server does, and reads their types.
func (b *bundle) readBlueprints(ctx context.Context) error {
	manifest, err := blueprint.Manifest()
	if err != nil {
		return err
	}
	admission, problems := newAdmission(manifest, blueprint.GroupVersion.Version)
	if len(problems) > 0 {
		return problems
	}
	for _, d := range b.all {
		if d.GroupVersionKind() != blueprint.GroupVersionKind {
			if d.GroupVersionKind().Group == blueprint.GroupVersion.Group {
				b.report(d, blueprint.Problem{Path: "kind", Reason: fmt.Sprintf("unknown kind %s in %s; use kind: %s and "+
					"apiVersion: %s", d.GetKind(), d.GetAPIVersion(), blueprint.GroupVersionKind.Kind, blueprint.GroupVersion)})
			}
			continue
		}
		if problems := admission.admit(ctx, d.Unstructured); len(problems) > 0 {
			b.report(d, problems...)
			continue
		}
		if _, err := instances.BlueprintTransform(d.Unstructured); err != nil {
			return err
		}
		read, err := blueprint.FromUnstructured(d.Unstructured)
		if err != nil {
			b.report(d, blueprint.Problem{Path: "spec", Reason: err.Error()})
			continue
		}
		if read.UID == "" {
			read.UID = types.UID("file/" + read.Name) // cannot be the UID of an owner
		}
		j := &checkedBlueprint{document: d, Blueprint: read}
		b.blueprints = append(b.blueprints, j)
		name := blueprint.DefinitionName(read)
		if other := b.defined[name]; other != nil {
			p := blueprint.Problem{Path: "spec.type", Reason: fmt.Sprintf(
				"%s is already claimed by Blueprint %s; use another type", name, other.Name)}
			if other.Name == read.Name {
				p = blueprint.Problem{Path: "metadata.name", Reason: "already used by a Blueprint in " + other.file}
			}
			b.report(d, p)
			continue
		}
		b.defined[name] = j
	}
	return nil
}

// ownMapper returns a mapper for the kinds that the files define.
func (b *bundle) ownMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	add := func(gvk schema.GroupVersionKind, plural, singular string, scope apiextensionsv1.ResourceScope) {
		mapped, gv := meta.RESTScopeNamespace, gvk.GroupVersion()
		if scope == apiextensionsv1.ClusterScoped {
			mapped = meta.RESTScopeRoot
		}
		singular = cmp.Or(singular, strings.ToLower(gvk.Kind))
		mapper.AddSpecific(gvk, gv.WithResource(plural), gv.WithResource(singular), mapped)
	}
	for _, crd := range b.crds {
		for _, v := range crd.Spec.Versions {
			if names := crd.Spec.Names; v.Served {
				add(schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: names.Kind}, names.Plural,
					names.Singular, crd.Spec.Scope)
			}
		}
	}
	for name, j := range b.defined {
		if t := j.Spec.Type; t.CRD == "" {
			plural, _, _ := strings.Cut(name, ".")
			add(schema.GroupVersionKind{Group: t.Group, Version: t.Version, Kind: t.Kind}, plural, t.Singular, t.Scope)
		}
	}
	return mapper
}

// verbsOf returns the verbs that are supported for a resource. Types of CustomResourceDefinitions support all verbs.
func (b *bundle) verbsOf(resource schema.GroupVersionResource) ([]string, error) {
	name := resource.GroupResource().String()
	if b.crds[name] != nil || b.defined[name] != nil {
		return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}, nil
	}
	return b.verbs(resource)
}

// crdFor returns a CustomResourceDefinition, or nil if it does not exist. It ignores the CustomResourceDefinition that
// the Blueprint own defines.
func (b *bundle) crdFor(ctx context.Context, own *checkedBlueprint, name string) (
	*apiextensionsv1.CustomResourceDefinition, error,
) {
	if crd := b.crds[name]; crd != nil {
		return crd, nil
	}
	if j := b.defined[name]; j != nil && j != own && j.Spec.Type.CRD == "" {
		err := b.check(ctx, j)
		return j.crd, err
	}
	if b.Cluster != nil {
		return b.Cluster.crd(ctx, name)
	}
	return nil, nil
}

// check checks a Blueprint. It first checks the Blueprints that define the types of the Blueprint's children.
func (b *bundle) check(ctx context.Context, j *checkedBlueprint) error {
	if j.done || b.defined[blueprint.DefinitionName(j.Blueprint)] != j {
		return nil // readBlueprints reports duplicates
	}
	j.done = true
	if b.Cluster != nil {
		if err := b.Cluster.setGeneration(ctx, j.Blueprint); err != nil {
			return err
		}
	}
	compiled, problems, err := acceptance.Check(ctx, j.Blueprint, acceptance.Types{
		Mapper: b.mapper, Verbs: b.verbsOf, Schemas: b.schemas,
		CRD: func(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
			return b.crdFor(ctx, j, name)
		},
		UnknownKindAdvice: b.advice(), AllowUnknownKinds: b.AllowUnknownKinds,
	})
	if err != nil {
		return fmt.Errorf("check Blueprint %s: %w", j.Name, err)
	}
	b.report(j.document, problems...)
	if len(problems) == 0 {
		j.compiled = compiled
	} else {
		compiled = typeOnly(j.Blueprint)
	}
	if compiled != nil && j.Spec.Type.CRD == "" {
		j.crd = compiled.Definition()
	}
	return nil
}

// typeOnly compiles the type of a Blueprint with invalid templates. It returns nil if the type is invalid as well.
func typeOnly(b *blueprint.Blueprint) *blueprint.Compiled {
	without := *b
	without.Spec.Resources, without.Spec.Type.Status, without.Spec.Type.Conditions = nil, nil, nil
	compiled, err := blueprint.Compile(&without, blueprint.Options{})
	if err != nil {
		return nil
	}
	return compiled
}

func (b *bundle) advice() string {
	if b.Cluster != nil {
		return "pass its CustomResourceDefinition as a file, or install it"
	}
	return "pass its CustomResourceDefinition as a file, or use --kubeconfig"
}

// typeOf returns the Blueprint and the type of an instance, or nil for other objects. It considers only the Blueprints
// in the files.
func (b *bundle) typeOf(ctx context.Context, d document) (
	*checkedBlueprint, *apiextensionsv1.CustomResourceDefinition, error,
) {
	gvk := d.GroupVersionKind()
	for _, j := range b.blueprints {
		crd, err := j.crd, error(nil)
		if name := j.Spec.Type.CRD; name != "" {
			crd, err = b.crdFor(ctx, j, name)
		}
		if err != nil || crd != nil && crd.Spec.Group == gvk.Group && crd.Spec.Names.Kind == gvk.Kind {
			return j, crd, err
		}
	}
	return nil, nil, nil
}

// sorted returns the problems, sorted by file and line.
func (b *bundle) sorted() []finding {
	slices.SortFunc(b.problems, compareFindings)
	return slices.Compact(b.problems)
}
