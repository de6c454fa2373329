package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
)

// RenderOptions configures Render.
type RenderOptions struct {
	Options
	// Namespace is the namespace of an instance that does not specify one.
	Namespace string
	// Children is a file with existing children and referenced objects. It is optional.
	Children string
}

// Render writes the children of an instance to out, in the order in which they are applied. The files must contain one
// instance, its Blueprint, and the types on which the Blueprint depends. Problems and notes about resources that are
// not rendered are written to errOut.
func Render(ctx context.Context, out, errOut io.Writer, files []string, o RenderOptions) error {
	b, err := load(ctx, files, o.Options)
	if err != nil {
		return err
	}
	if len(b.problems) > 0 {
		return b.print(errOut)
	}
	d, j, crd, err := b.instance(ctx)
	if err != nil {
		return err
	}
	if err := b.prepare(ctx, d, crd, o.Namespace); err != nil {
		return err
	}
	existing, err := b.existing(o.Children)
	if err != nil {
		return err
	}
	if len(b.problems) > 0 {
		return b.print(errOut)
	}
	stages, step, err := applyAll(ctx, j.compiled.Instance(d.Unstructured).WithLookup(lookup(existing)), existing)
	if err != nil {
		return err
	}
	if err := printChildren(out, stages); err != nil {
		return err
	}
	if err := printNotes(errOut, step); err != nil {
		return err
	}
	b.report(j.document, step.Problems...)
	return b.print(errOut)
}

// instance returns the instance in the files, its Blueprint and its type. It returns an error unless the files contain
// exactly one instance.
func (b *bundle) instance(ctx context.Context) (
	d document, j *checkedBlueprint, crd *apiextensionsv1.CustomResourceDefinition, err error,
) {
	found := 0
	for _, one := range b.all {
		owner, definition, err := b.typeOf(ctx, one)
		if err != nil {
			return d, nil, nil, err
		}
		if definition != nil {
			d, j, crd = one, owner, definition
			found++
		}
	}
	if found != 1 {
		return d, nil, nil, fmt.Errorf("the files must contain exactly one instance of one of their Blueprints, got %d",
			found)
	}
	return d, j, crd, nil
}

// prepare defaults and validates the instance. Fields that the API server would set are filled with placeholders.
func (b *bundle) prepare(
	ctx context.Context, d document, crd *apiextensionsv1.CustomResourceDefinition, namespace string,
) error {
	if want := blueprint.VersionOf(crd); d.GroupVersionKind().Version != want {
		return fmt.Errorf("the platform reads instances of %s in version %s; convert the instance", crd.Name, want)
	}
	if crd.Spec.Scope != apiextensionsv1.ClusterScoped && d.GetNamespace() == "" {
		d.SetNamespace(namespace)
	}
	admission, problems := newAdmission(crd, d.GroupVersionKind().Version)
	if admission != nil {
		problems = admission.admit(ctx, d.Unstructured)
	}
	b.report(d, problems...)
	for field, value := range map[string]any{
		"uid": "00000000-0000-0000-0000-000000000000", "creationTimestamp": "1970-01-01T00:00:00Z", "generation": int64(1),
	} {
		if _, has, _ := unstructured.NestedFieldNoCopy(d.Object, "metadata", field); has {
			continue
		}
		if err := unstructured.SetNestedField(d.Object, value, "metadata", field); err != nil {
			return err
		}
	}
	return nil
}

type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// lookup returns a Lookup that finds the existing objects.
func lookup(existing map[objectKey]*unstructured.Unstructured) blueprint.Lookup {
	return func(_ context.Context, r blueprint.Reference) (found []*unstructured.Unstructured, err error) {
		kind := r.GVK.GroupKind()
		if r.Selector == nil {
			object := existing[objectKey{kind, r.Namespace, r.Name}]
			if object == nil {
				return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, r.Name)
			}
			return []*unstructured.Unstructured{object}, nil
		}
		for key, object := range existing {
			if key.kind == kind && key.namespace == r.Namespace && r.Selector.Matches(labels.Set(object.GetLabels())) {
				found = append(found, object)
			}
		}
		slices.SortFunc(found, func(a, b *unstructured.Unstructured) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return found, nil
	}
}

// existing reads existing objects from a file.
func (b *bundle) existing(file string) (map[objectKey]*unstructured.Unstructured, error) {
	if file == "" {
		return nil, nil
	}
	all, problems, err := readAll([]string{file}, b.Stdin)
	if err != nil {
		return nil, err
	}
	b.problems = append(b.problems, problems...)
	out := map[objectKey]*unstructured.Unstructured{}
	for _, d := range all {
		out[keyOf(d.Unstructured)] = d.Unstructured
	}
	return out, nil
}

// applyAll simulates applying the children until no more children can be rendered. It assumes that the API server
// stores a new child exactly as it was rendered. Each stage lists the children that are applied together.
func applyAll(
	ctx context.Context, instance *blueprint.Instance, existing map[objectKey]*unstructured.Unstructured,
) (stages [][]blueprint.Rendered, last blueprint.Step, err error) {
	observed := map[string]*unstructured.Unstructured{}
	for {
		if last, err = instance.Step(ctx, observed); err != nil {
			return nil, last, err
		}
		var stage []blueprint.Rendered
		for _, r := range last.Rendered {
			if observed[r.Key] != nil {
				continue
			}
			stage = append(stage, r)
			if observed[r.Key] = existing[keyOf(r.Object)]; observed[r.Key] == nil {
				observed[r.Key] = r.Object
			}
		}
		if len(stage) == 0 {
			return stages, last, nil
		}
		stages = append(stages, stage)
	}
}

func printChildren(out io.Writer, stages [][]blueprint.Rendered) error {
	for i, stage := range stages {
		for _, r := range stage {
			text, err := yaml.Marshal(r.Object.Object)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "---\n# %s, stage %d\n%s", r.ID, i+1, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// printNotes explains why resources are not ready or not rendered.
func printNotes(out io.Writer, step blueprint.Step) (err error) {
	note := func(text string) {
		_, failed := fmt.Fprintf(out, "# %s\n", explain.Printable(text))
		err = errors.Join(err, failed)
	}
	for _, r := range slices.Concat(step.Unready, step.Waiting) {
		note(r.String())
	}
	for _, e := range step.Excluded {
		note(e.ID + ": " + e.Reason())
	}
	return err
}
