package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
)

// jobEnv is the environment variable that contains a job in JSON. If it is set, the test binary runs the job instead of
// the tests.
const jobEnv = "BENCH_JOB"

// job is the measurement of one engine in one scenario.
type job struct {
	Scenario   string
	Engine     string
	Kubeconfig string
	Control    string `json:",omitempty"` // The URL that runs the phases of scenarioRequests.
	Fixture    fixture

	CycleTime   time.Duration `json:",omitempty"`
	Define      int           `json:",omitempty"`
	DefinePause time.Duration `json:",omitempty"`
	Rounds      int           `json:",omitempty"`
	AloneTime   time.Duration `json:",omitempty"`
	Stops       int           `json:",omitempty"`
	StopPeriod  time.Duration `json:",omitempty"`
	EventTime   time.Duration `json:",omitempty"`
	EventRate   int           `json:",omitempty"` // Updates per second.
	Load        shardLoad     `json:",omitzero"`  // The first load of scenarioMember.
}

const (
	scenarioTypes       = "types"
	scenarioEstablished = "established"
	scenarioFairness    = "fairness"
	scenarioStop        = "stop"
	scenarioMemory      = "memory"
	scenarioSync        = "sync"
	scenarioEvents      = "events"
	scenarioWriter      = "writer" // The process that writes for scenarioEvents.
	scenarioScale       = "scale"
	scenarioRate        = "rate"
	scenarioManyTypes   = "many-types"
	scenarioRequests    = "requests"
)

var scenarios = map[string]func(context.Context, *run) (measures, error){
	scenarioTypes:       measureTypes,
	scenarioEstablished: measureEstablished,
	scenarioFairness:    measureFairness,
	scenarioStop:        measureStop,
	scenarioMemory:      measureMemory,
	scenarioSync:        measureSync,
	scenarioEvents:      measureEvents,
	scenarioWriter:      writeEvents,
	scenarioScale:       measureScale,
	scenarioRate:        measureRate,
	scenarioManyTypes:   measureManyTypes,
	scenarioRequests:    measureRequests,
}

// jobTimeout is the timeout of a job.
const jobTimeout = 15 * time.Minute

// size describes the parameters of the job, excluding the engine.
func (j job) size() string {
	parts := []string{fmt.Sprintf("%d workers", workers)}
	if len(j.Fixture.Objects) > 0 {
		parts = append(parts, j.Fixture.String())
	}
	if j.Define > 0 {
		parts = append(parts, fmt.Sprintf("%d types defined, %s apart", j.Define, j.DefinePause))
	}
	if j.Rounds > 0 {
		parts = append(parts, fmt.Sprintf("%d rounds", j.Rounds))
	}
	if j.Stops > 0 {
		parts = append(parts, fmt.Sprintf("%d stops", j.Stops))
	}
	if j.StopPeriod > 0 {
		parts = append(parts, fmt.Sprintf("at most one per %s", j.StopPeriod))
	}
	if j.EventRate > 0 {
		parts = append(parts, fmt.Sprintf("%d events/s for %s", j.EventRate, j.EventTime))
	}
	return strings.Join(parts, ", ")
}

// warmUp serves the types of the job once before the measurements, so that the caches of the API server are warm for
// all engines.
func (j job) warmUp(ctx context.Context) error {
	if len(j.Fixture.Objects) == 0 {
		return nil
	}
	_, err := job{Scenario: scenarioMemory, Engine: *tableAgainst, Kubeconfig: j.Kubeconfig, Fixture: j.Fixture}.start(ctx)
	return err
}

// start runs the job in a separate process.
func (j job) start(ctx context.Context) (measures, error) {
	fail := func(err error) (measures, error) { return nil, fmt.Errorf("%s of %s: %w", j.Scenario, j.Engine, err) }
	binary, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	if engine, before := strings.CutSuffix(j.Engine, beforeSuffix); before {
		binary, j.Engine = *beforeBinary, engine
	}
	spec, err := json.Marshal(j)
	if err != nil {
		return fail(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(spec))
	cmd.Stdout, cmd.Stderr = &out, &errs
	// The write end of this pipe is closed when this process exits for any reason.
	if _, err := cmd.StdinPipe(); err != nil {
		return fail(err)
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // The Go runtime prints all goroutines.
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

// commands receives the lines that the parent process writes.
var commands = make(chan string)

// runJob runs the process of a job and returns its exit code.
func runJob(spec string) int {
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			commands <- lines.Text()
		}
		os.Exit(1) // The parent process has exited.
	}()
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
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
	ctrl.SetLogger(logr.Discard()) // Prevents a warning from controller-runtime.
	// Ignore GOGC and GOMEMLIMIT, and use the defaults.
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(math.MaxInt64)
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
	// Send a first request, so that the connection and other state that it creates are not attributed to the engine.
	if _, err := r.client.Resource(crdResource).List(ctx, oneObject); err != nil {
		return nil, err
	}
	return scenarios[r.Scenario](ctx, r)
}

// run is a running job.
type run struct {
	job
	config *rest.Config
	client dynamic.Interface // The client of the scenario. Engines have their own clients.
}

// engine creates and runs the job's engine. The end function stops the engine and waits until it has returned.
func (r *run) engine(ctx context.Context, types int) (e engine, end func() error, err error) {
	e, err = newEngine(r.Engine, rest.CopyConfig(r.config), types)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	return e, func() error {
		cancel(errors.New("the measurement has ended"))
		return <-ended
	}, nil
}
