package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{WithControllers: true})

// where is filled in by TestMain, which builds the binaries.
var where = places{examples: "../.."}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(built{m})) }

// built builds the examples around the tests, as make does: an example may be a module of its own.
type built struct{ tests *testing.M }

func (b built) Run() (code int) {
	dir, err := os.MkdirTemp("", "examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	where.binaries = dir
	for name := range stories {
		build := exec.Command("go", "build", "-C", filepath.Join(where.examples, name), "-o", filepath.Join(dir, name), ".")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return b.tests.Run()
}

// on tells a story on the shared cluster.
func on(ctx context.Context, t *testing.T, story ...step) (out string, err error) {
	t.Helper()
	var said bytes.Buffer
	err = tell(ctx, &said, shared.Cluster(t), where, story)
	return said.String(), err
}

func TestEveryExampleDoesWhatItsStorySays(t *testing.T) {
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			out, err := on(t.Context(), t, story...)
			if err != nil {
				t.Errorf("%v; it went like this:\n%s", err, out)
			}
		})
	}
}

// A folder with a main.go is an example, and the demonstration has tests of its own.
func TestEveryExampleHasAStoryAndAReadme(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(where.examples, "*", "main.go"))
	if err != nil || len(mains) <= len(stories) {
		t.Fatalf("found %q, %v", mains, err)
	}
	for _, path := range mains {
		dir := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(dir, "README.md")); err != nil {
			t.Error(err)
		}
		if name := filepath.Base(dir); name != "demo" && stories[name] == nil {
			t.Errorf("the example %s has no story", name)
		}
	}
}

func TestAStoryFails(t *testing.T) {
	for name, test := range map[string]struct {
		story []step
		want  string
	}{
		"when something is not said": {
			[]step{start("hello"), said("hello", "serving"), said("hello", "serving")},
			`hello has not said "serving": no more time`,
		},
		"when an example ends by itself": {
			[]step{func(_ context.Context, s *stage) error { s.kubeconfig = "no-such-file"; return nil }, start("hello"), said("hello", "Hello")},
			`hello has not said "Hello": it has ended: exit status 1`,
		},
		"when an example does not end well": {
			[]step{
				start("hello"),
				func(_ context.Context, s *stage) error { return s.processes["hello"].cmd.Process.Kill() },
				end("hello"),
			},
			"hello ended with signal: killed",
		},
		"when something is said that should not": {
			[]step{
				start("hello"),
				func(_ context.Context, s *stage) error {
					_, err := s.processes["hello"].Write([]byte("Hello\n"))
					return err
				},
				silent("hello", "Hello"),
			},
			`hello has said "Hello", which it should not`,
		},
		"when something does not become what it should": {
			[]step{apply("hello/greetings.yaml"), apply("hello/world.yaml"), becomes("greeting/first", "{.spec.name}", "moon")},
			`greeting/first has "world" at {.spec.name}, not "moon"`,
		},
		"when something that is deleted does not come back": {
			[]step{apply("hello/greetings.yaml"), apply("hello/world.yaml"), comesBack("greeting/first")},
			"greeting/first does not come back",
		},
		"when something does not go": {
			[]step{apply("hello/greetings.yaml"), apply("hello/world.yaml"), goes("greeting/first")},
			"greeting/first is not gone",
		},
		"when there is no such manifest": {[]step{apply("hello/no-such-file.yaml")}, "no such file"},
		"when there is no such binary":   {[]step{start("no-such-example")}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			const enough = 2 * time.Second
			ctx, cancel := context.WithTimeoutCause(t.Context(), enough, errors.New("no more time"))
			defer cancel()
			if out, err := on(ctx, t, test.story...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got the error %v, want one with %q; it went like this:\n%s", err, test.want, out)
			}
		})
	}
}
