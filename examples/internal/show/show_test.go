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
			[]step{start("hello"), kill("hello"), stop("hello")},
			"hello ended with signal: killed",
		},
		"a line that should not be printed": {
			[]step{
				start("hello"), write("hello", "Hello\n"), hasNotPrinted("hello", "Hello"),
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
		"an example that has already ended": {[]step{start("hello"), kill("hello"), kill("hello")}, "kill hello: "},
		"a shard that two processes lead": {
			[]step{
				start("hello"), write("hello", "x leads shards [0 1], standby for []\nx leads shards [0], standby for [1]\n"),
				startAs("other", "hello"), write("other", "y leads shards [0 1], standby for []\n"),
				leadAll(2, "hello", "other"),
			},
			"hello leads [0] and is the standby for [1], other leads [0 1] and is the standby for []: " +
				"shard 0 has 2 processes as its leader: ",
		},
		"a shard without a standby": {
			[]step{
				start("hello"), write("hello", "x leads shards [0], standby for [1]\n"),
				startAs("other", "hello"), write("other", "y leads shards [1], standby for []\n"),
				leadAll(2, "hello", "other"), divide(2, "hello", "other"),
			},
			"shard 0 has 0 processes as its standby: ",
		},
		"shards that are not divided evenly": {
			[]step{
				start("hello"), write("hello", "x leads shards [0 1 2], standby for [3]\n"),
				startAs("other", "hello"), write("other", "y leads shards [3], standby for [0 1 2]\n"),
				divide(4, "hello", "other"),
			},
			"the division is uneven: ",
		},
		"an object that no process has reconciled": {
			[]step{apply("sharded/objects.yaml"), marked("sharded/objects.yaml", "a", "b")},
			`ConfigMap/sharded is marked by ""`,
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

// write adds output to that of a process.
func write(name, output string) step {
	return func(_ context.Context, s *environment) error {
		_, err := s.processes[name].Write([]byte(output))
		return err
	}
}
