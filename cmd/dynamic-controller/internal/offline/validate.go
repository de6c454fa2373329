package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
)

// ErrProblems is returned if problems were found. They have been written to the output.
var ErrProblems = errors.New("problems were found")

// Validate checks the Blueprints in the given files and the instances of these Blueprints. It writes one line per
// problem to out. If everything is valid, it writes the number of Blueprints and instances to errOut.
func Validate(ctx context.Context, out, errOut io.Writer, files []string, o Options) error {
	b, err := load(ctx, files, o)
	if err != nil {
		return err
	}
	instances := 0
	for _, d := range b.all {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, crd, err := b.typeOf(ctx, d)
		if err != nil {
			return err
		}
		if crd == nil {
			b.reportMisnamed(d)
			continue
		}
		instances++
		admission, problems := newAdmission(crd, d.GroupVersionKind().Version)
		if admission != nil {
			problems = admission.admit(ctx, d.Unstructured)
		}
		b.report(d, problems...)
	}
	if len(b.blueprints)+len(b.problems) == 0 {
		b.problems = append(b.problems, finding{files[0], 1, "no Blueprint is in the files, so nothing was checked; " +
			"pass Blueprints, and instances together with their Blueprints"})
	}
	if err := b.print(out); err != nil {
		return err
	}
	if err := b.printExclusions(errOut); err != nil {
		return err
	}
	_, err = fmt.Fprintf(errOut, "%s and %s are valid\n",
		count(len(b.blueprints), "Blueprint"), count(instances, "instance"))
	return err
}

// printExclusions writes a note for each resource that is excluded through another one without saying so.
func (b *bundle) printExclusions(out io.Writer) error {
	for _, j := range b.blueprints {
		for _, e := range j.compiled.Exclusions() {
			note := j.finding(blueprint.Problem{Path: e.Path, Reason: e.String()})
			if _, err := fmt.Fprintf(out, "note: %s\n", explain.Printable(note.String())); err != nil {
				return err
			}
		}
	}
	return nil
}

// reportMisnamed reports an object of an unknown kind in the API group of a Blueprint's type, because it is probably
// meant to be an instance. Other objects of unknown kinds are not checked.
func (b *bundle) reportMisnamed(d document) {
	var kinds []string
	for _, j := range b.blueprints {
		if t := j.Spec.Type; t.Group == d.GroupVersionKind().Group && t.Kind != "" {
			kinds = append(kinds, t.Kind)
		}
	}
	if _, err := b.mapper.RESTMapping(d.GroupVersionKind().GroupKind()); len(kinds) == 0 || !meta.IsNoMatchError(err) {
		return
	}
	b.report(d, blueprint.Problem{Path: "kind", Reason: fmt.Sprintf("unknown kind %s in %s%s", d.GetKind(),
		d.GetAPIVersion(), cmp.Or(blueprint.Suggest(d.GetKind(), kinds), "; the Blueprints define "+
			strings.Join(kinds, ", ")))})
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// print writes the problems, and returns ErrProblems if there are any.
func (b *bundle) print(out io.Writer) error {
	if len(b.problems) == 0 {
		return nil
	}
	for _, f := range b.sorted() {
		if _, err := fmt.Fprintln(out, explain.Printable(f.String())); err != nil {
			return err
		}
	}
	return ErrProblems
}

func compareFindings(a, b finding) int {
	return cmp.Or(strings.Compare(a.file, b.file), cmp.Compare(a.line, b.line), strings.Compare(a.text, b.text))
}
