package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// platform is the binary, running.
type platform struct {
	cmd   *exec.Cmd
	log   *logFile
	ended chan struct{} // closed once it has
}

// startPlatform runs the binary. When it ends, for whatever reason, it tells so with ended.
func startPlatform(kubeconfig, binary, log string, ended context.CancelCauseFunc) (*platform, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	p := &platform{cmd: exec.Command(binary, "run"), log: &logFile{file: file}, ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), clientcmd.RecommendedConfigPathEnvVar+"="+kubeconfig)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = ofThisProcess()
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("the platform: %w", err), file.Close())
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // ProcessState says how
		ended(fmt.Errorf("dynamic-controller has ended: %s", p.cmd.ProcessState))
		_ = file.Close()
	}()
	return p, nil
}

// stop ends the platform as Kubernetes ends a Pod, and returns when it is gone.
func (p *platform) stop(say func(string, ...any)) error {
	const grace = 30 * time.Second
	select {
	case <-p.ended:
		return fmt.Errorf("dynamic-controller had ended before: %s", p.cmd.ProcessState)
	default:
	}
	began := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone by now
	select {
	case <-p.ended:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("dynamic-controller did not end within %s of SIGTERM", grace)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("dynamic-controller ended with %s", p.cmd.ProcessState)
	}
	say("dynamic-controller ended %s after SIGTERM", since(began))
	return nil
}

// logFile keeps what the platform writes, in a file and in mind.
type logFile struct {
	file *os.File

	mu    sync.Mutex // guards what follows
	lines []logLine
	rest  []byte // of a line that is not whole
}

// logLine is what is read of a line, and when it was.
type logLine struct {
	Msg, GVR string
	text     string
	at       time.Time
}

func (l *logFile) Write(data []byte) (int, error) {
	now := time.Now()
	l.mu.Lock()
	l.rest = append(l.rest, data...)
	for {
		text, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			break
		}
		line := logLine{text: string(text), at: now}
		_ = json.Unmarshal(text, &line) // a panic, for instance, is no JSON
		l.lines, l.rest = append(l.lines, line), rest
	}
	l.mu.Unlock()
	return l.file.Write(data)
}

// said returns when the platform first said msg of the type, after a moment.
func (l *logFile) said(msg string, t definedType, after time.Time) (at time.Time, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if line.Msg == msg && strings.HasPrefix(line.GVR, t.Spec.Names.Plural+".") && line.at.After(after) {
			return line.at, true
		}
	}
	return time.Time{}, false
}

// end is what the platform wrote last.
func (l *logFile) end() string {
	const most = 15
	l.mu.Lock()
	defer l.mu.Unlock()
	var end strings.Builder
	for _, line := range l.lines[max(0, len(l.lines)-most):] {
		end.WriteString("  " + line.text + "\n")
	}
	end.Write(l.rest)
	return end.String()
}
