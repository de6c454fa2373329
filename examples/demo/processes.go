package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// replicas is the number of replicas that the demonstration starts, and the minimum number of deployed ones.
const replicas = 2

// electionFlags make a failover quick enough to watch. The defaults are 15s, 10s and 2s.
var electionFlags = []string{
	"--leader-elect-lease-duration=3s",
	"--leader-elect-renew-deadline=2s",
	"--leader-elect-retry-period=500ms",
}

// processes is a platform whose replicas are child processes.
type processes struct {
	binary, kubeconfig, namespace string
	diagnostics                   *diagnostics // nil if the replicas do not serve their diagnostics
	// failed is called when a replica exits unexpectedly.
	failed context.CancelCauseFunc
	// If onExit is not nil and another replica is still running, onExit is called instead of failed.
	onExit printf

	byName map[string]*process
	names  []string // in the order in which they were started

	mu      sync.Mutex // guards running
	running int
}

// process is a replica that is running or has exited.
type process struct {
	name     string
	cmd      *exec.Cmd
	log      *logFile
	ended    chan struct{} // closed when the process has exited
	stopping chan struct{} // closed before the demonstration stops the process
}

// startProcesses starts the replicas. The names of their log files are derived from log.
func startProcesses(p *processes, log string) error {
	p.byName = map[string]*process{}
	for i := range replicas {
		name := fmt.Sprintf("replica-%d", i+1)
		ext := filepath.Ext(log)
		file, err := os.Create(fmt.Sprintf("%s-%d%s", strings.TrimSuffix(log, ext), i+1, ext))
		if err != nil {
			return errors.Join(err, p.stop(func(string, ...any) {}))
		}
		p.names = append(p.names, name)
		p.byName[name] = &process{name: name, log: &logFile{file: file}}
		if err := p.start(p.byName[name]); err != nil {
			return errors.Join(err, p.stop(func(string, ...any) {}))
		}
	}
	return nil
}

func (p *processes) start(r *process) error {
	args := append([]string{
		"run", "--namespace=" + p.namespace, "--allow-platform-identity", "--health-probe-bind-address=0",
	}, electionFlags...)
	if p.diagnostics != nil {
		args = append(args, p.diagnostics.flags()...)
	}
	r.cmd = exec.Command(p.binary, args...)
	r.cmd.Env = append(os.Environ(), clientcmd.RecommendedConfigPathEnvVar+"="+p.kubeconfig, "POD_NAME="+r.name)
	r.cmd.Stderr = r.log
	r.cmd.SysProcAttr = childAttributes()
	r.ended, r.stopping = make(chan struct{}), make(chan struct{})
	if err := r.cmd.Start(); err != nil {
		close(r.ended)
		return fmt.Errorf("start the platform: %w", err)
	}
	p.count(1)
	go func(cmd *exec.Cmd, ended, stopping chan struct{}) {
		defer close(ended)
		_ = cmd.Wait() // the result is in ProcessState
		p.hasEnded(r.name, cmd, stopping)
	}(r.cmd, r.ended, r.stopping)
	return nil
}

func (p *processes) count(n int) (running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running += n
	return p.running
}

func (p *processes) hasEnded(name string, cmd *exec.Cmd, stopping chan struct{}) {
	left := p.count(-1)
	select {
	case <-stopping:
		return
	default:
	}
	if p.onExit != nil && left > 0 {
		p.onExit("%s has ended: %s", name, cmd.ProcessState)
		return
	}
	p.failed(fmt.Errorf("dynamic-controller has ended: %s", cmd.ProcessState))
}

// String lists the processes and their log files.
func (p *processes) String() string {
	var each []string
	for _, name := range p.names {
		r := p.byName[name]
		each = append(each, fmt.Sprintf("%s is process %d with the log %s", name, r.cmd.Process.Pid, r.log.file.Name()))
	}
	return strings.Join(each, ", ")
}

func (p *processes) logs() map[string]*logFile {
	logs := map[string]*logFile{}
	for name, r := range p.byName {
		logs[name] = r.log
	}
	return logs
}

func (p *processes) kill(_ context.Context, replica string) error {
	r := p.byName[replica]
	if r == nil {
		return fmt.Errorf("unknown replica %q", replica)
	}
	close(r.stopping)
	err := r.cmd.Process.Kill()
	<-r.ended
	return err
}

func (p *processes) revive(_ context.Context, replica string) error {
	return p.start(p.byName[replica])
}

// stop stops the replicas with SIGTERM, as Kubernetes stops Pods, and waits until they have exited.
func (p *processes) stop(say printf) error {
	const grace = 30 * time.Second
	var errs []error
	began := time.Now()
	var ending []*process
	for _, name := range p.names {
		r := p.byName[name]
		if r.ended == nil {
			continue // never started
		}
		select {
		case <-r.ended:
			if p.onExit == nil {
				errs = append(errs, fmt.Errorf("%s ended unexpectedly: %s", name, r.cmd.ProcessState))
			}
		default:
			close(r.stopping)
			_ = r.cmd.Process.Signal(syscall.SIGTERM) // the process may already have exited
			ending = append(ending, r)
		}
	}
	timeout := time.After(grace)
	for _, r := range ending {
		select {
		case <-r.ended:
			if !r.cmd.ProcessState.Success() {
				errs = append(errs, fmt.Errorf("%s ended with %s", r.name, r.cmd.ProcessState))
			}
		case <-timeout:
			_ = r.cmd.Process.Kill()
			<-r.ended
			errs = append(errs, fmt.Errorf("%s did not end within %s of SIGTERM", r.name, grace))
		}
	}
	for _, name := range p.names {
		errs = append(errs, p.byName[name].log.file.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	say("all replicas of dynamic-controller ended %s after SIGTERM", since(began))
	return nil
}
