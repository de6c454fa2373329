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

// dirs is completed by TestMain, which builds the binaries.
var dirs = directories{examples: "../.."}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(built{m})) }

// built builds the examples, as make does, and then runs the tests. An example can be a separate module.
type built struct{ tests *testing.M }

func (b built) Run() (code int) {
	dir, err := os.MkdirTemp("", "examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	dirs.binaries = dir
	for name := range scenarios {
		build := exec.Command("go", "build", "-C", filepath.Join(dirs.examples, name), "-o", filepath.Join(dir, name), ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // like other programs, to use the same build cache
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return b.tests.Run()
}

// runSteps runs steps on the shared cluster.
func runSteps(ctx context.Context, t *testing.T, steps ...step) (out string, err error) {
	t.Helper()
	var printed bytes.Buffer
	err = run(ctx, &printed, shared.Cluster(t), dirs, steps)
	return printed.String(), err
}

func TestScenarios_Succeed(t *testing.T) {
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) {
			out, err := runSteps(t.Context(), t, scenario...)
			if err != nil {
				t.Errorf("%v, after this output:\n%s", err, out)
			}
		})
	}
}

// TestScenarios_CoverAllExamples checks each directory with a main.go. The demonstration has its own tests.
func TestScenarios_CoverAllExamples(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(dirs.examples, "*", "main.go"))
	if err != nil || len(mains) <= len(scenarios) {
		t.Fatalf("found %q, %v", mains, err)
	}
	for _, path := range mains {
		dir := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(dir, "README.md")); err != nil {
			t.Error(err)
		}
		if name := filepath.Base(dir); name != "demo" && scenarios[name] == nil {
			t.Errorf("the example %s has no scenario", name)
		}
	}
}

func TestRun_ReturnsStepError(t *testing.T) {
	for name, test := range map[string]struct {
		steps []step
		want  string
	}{
		"a line that is not printed": {
			[]step{start("hello"), prints("hello", "serving"), prints("hello", "serving")},
			`hello has not printed "serving": no more time`,
		},
		"an example that ends too early": {
			[]step{
				func(_ context.Context, s *environment) error { s.kubeconfig = "no-such-file"; return nil },
				start("hello"), prints("hello", "Hello"),
			},
			`hello has not printed "Hello": the process has ended: exit status 1`,
		},
		"an example that is killed": {
			[]step{
				start("hello"),
				func(_ context.Context, s *environment) error { return s.processes["hello"].cmd.Process.Kill() },
				stop("hello"),
			},
			"hello ended with signal: killed",
		},
		"a line that should not be printed": {
			[]step{
				start("hello"),
				func(_ context.Context, s *environment) error {
					_, err := s.processes["hello"].Write([]byte("Hello\n"))
					return err
				},
				hasNotPrinted("hello", "Hello"),
			},
			`hello has unexpectedly printed "Hello"`,
		},
		"an object with another value": {
			[]step{apply("hello/greetings.yaml"), apply("hello/world.yaml"), hasValue("greeting/first", "{.spec.name}", "moon")},
			`greeting/first has "world" at {.spec.name}, not "moon"`,
		},
		"an object that is not created again": {
			[]step{apply("hello/greetings.yaml"), apply("hello/world.yaml"), recreates("greeting/first")},
			"greeting/first was not created again",
		},
		"an object that is not deleted": {
			[]step{apply("hello/greetings.yaml"), apply("hello/world.yaml"), deletes("greeting/first")},
			"greeting/first still exists",
		},
		"an unknown manifest": {[]step{apply("hello/no-such-file.yaml")}, "no such file"},
		"an unknown binary":   {[]step{start("no-such-example")}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			const enough = 2 * time.Second
			ctx, cancel := context.WithTimeoutCause(t.Context(), enough, errors.New("no more time"))
			defer cancel()
			if out, err := runSteps(ctx, t, test.steps...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got the error %v, want one with %q, after this output:\n%s", err, test.want, out)
			}
		})
	}
}
