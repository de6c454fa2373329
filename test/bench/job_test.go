package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
)

// jobEnv holds a job in JSON. A test binary that finds it does the job instead of the tests.
const jobEnv = "BENCH_JOB"

// job is one engine to be measured in one scenario.
type job struct {
	Scenario   string
	Engine     string
	Kubeconfig string
	Fixture    fixture

	CycleTime time.Duration `json:",omitempty"`
	Define    int           `json:",omitempty"`
	Rounds    int           `json:",omitempty"`
	AloneTime time.Duration `json:",omitempty"`
	Stops     int           `json:",omitempty"`
}

const (
	scenarioTypes       = "types"
	scenarioEstablished = "established"
	scenarioFairness    = "fairness"
	scenarioStop        = "stop"
)

var scenarios = map[string]func(context.Context, *run) (measures, error){
	scenarioTypes:       measureTypes,
	scenarioEstablished: measureEstablished,
	scenarioFairness:    measureFairness,
	scenarioStop:        measureStop,
}

// tooLong is when a job is given up.
const tooLong = 15 * time.Minute

// size says what matters of the job besides the engine.
func (j job) size() string {
	parts := []string{fmt.Sprintf("%d workers", workers)}
	if len(j.Fixture.Objects) > 0 {
		parts = append(parts, j.Fixture.String())
	}
	if j.Define > 0 {
		parts = append(parts, fmt.Sprintf("%d types defined", j.Define))
	}
	if j.Rounds > 0 {
		parts = append(parts, fmt.Sprintf("%d rounds", j.Rounds))
	}
	if j.Stops > 0 {
		parts = append(parts, fmt.Sprintf("%d stops", j.Stops))
	}
	return strings.Join(parts, ", ")
}

// warmUp serves the job's types once, for nothing, so that the API server's caches are as warm for the first engine as
// they are for the others.
func (j job) warmUp(ctx context.Context) error {
	if len(j.Fixture.Objects) == 0 {
		return nil
	}
	_, err := job{Scenario: scenarioTypes, Engine: *tableAgainst, Kubeconfig: j.Kubeconfig, Fixture: j.Fixture}.start(ctx)
	return err
}

// start does the job in a process of its own.
func (j job) start(ctx context.Context) (measures, error) {
	fail := func(err error) (measures, error) { return nil, fmt.Errorf("%s of %s: %w", j.Scenario, j.Engine, err) }
	spec, err := json.Marshal(j)
	if err != nil {
		return fail(err)
	}
	binary, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(spec))
	cmd.Stdout, cmd.Stderr = &out, &errs
	// The other end of this pipe closes with this process, however it ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return fail(err)
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it says where it stands
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fail(fmt.Errorf("%w: %s", context.Cause(ctx), errs.String()))
		}
		return fail(fmt.Errorf("%w: %s", err, lastLines(errs.String())))
	}
	var m measures
	if err := json.Unmarshal(out.Bytes(), &m); err != nil {
		return fail(err)
	}
	return m, nil
}

func lastLines(text string) string {
	const most = 20
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// runJob is the whole of that process.
func runJob(spec string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // whoever wanted to know has gone
	}()
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	m, err := doJob(ctx, spec)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func doJob(ctx context.Context, spec string) (measures, error) {
	ctrl.SetLogger(logr.Discard()) // or it complains
	r := &run{}
	if err := json.Unmarshal([]byte(spec), &r.job); err != nil {
		return nil, err
	}
	var err error
	if r.config, err = clientcmd.BuildConfigFromFlags("", r.Kubeconfig); err != nil {
		return nil, err
	}
	r.config.QPS = -1
	if r.client, err = dynamic.NewForConfig(r.config); err != nil {
		return nil, err
	}
	// What a first request leaves behind, a connection above all, is nobody's cost.
	if _, err := r.client.Resource(crdResource).List(ctx, oneObject); err != nil {
		return nil, err
	}
	return scenarios[r.Scenario](ctx, r)
}

// run is a job being done.
type run struct {
	job
	config *rest.Config
	client dynamic.Interface // of the scenario's own; the engine has others
}

// engine makes the job's engine and runs it. End ends it, and waits.
func (r *run) engine(ctx context.Context, types int) (e engine, end func() error, err error) {
	e, err = newEngine(r.Engine, rest.CopyConfig(r.config), types)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	return e, func() error {
		cancel(errors.New("the measurement is over"))
		return <-ended
	}, nil
}
