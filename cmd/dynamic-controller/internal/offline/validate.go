package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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
			continue
		}
		instances++
		admission, problems := newAdmission(crd, d.GroupVersionKind().Version)
		if admission != nil {
			problems = admission.admit(ctx, d.Unstructured)
		}
		b.report(d, problems...)
	}
	if err := b.print(out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(errOut, "%s and %s are valid\n",
		count(len(b.blueprints), "Blueprint"), count(instances, "instance"))
	return err
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
