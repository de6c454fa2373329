package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// atMost is how long the whole demonstration may take.
const atMost = 50 * time.Second

func main() {
	stay := flag.Bool("stay", false, "define the types and stay until Ctrl-C")
	binary := flag.String("binary", "bin/dynamic-controller", "the platform's `FILE`")
	log := flag.String("log", "bin/demo.log", "where the platform's log goes, a `FILE`")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := demonstrate(ctx, *binary, *log, *stay)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	switch {
	case interrupted && !*stay:
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(interruptedCode)
	case err != nil:
		os.Exit(1)
	}
}

// interruptedCode is what a shell makes of a SIGINT.
const interruptedCode = 130

// demonstrate does so, and puts everything away after it whatever came of it.
func demonstrate(ctx context.Context, binary, log string, stay bool) (err error) {
	say := sayer(time.Now())
	if _, err := exec.LookPath(binary); err != nil {
		return fmt.Errorf("the platform: %w", err)
	}
	c, err := openCluster(ctx, say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()

	working, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	p, err := startPlatform(c.kubeconfig, binary, log, failed)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\nthe end of %s:\n%s", err, log, p.log.end())
		}
		err = cmp.Or(err, p.stop(say))
	}()
	say("%s runs as process %d, its log is %s", binary, p.cmd.Process.Pid, log)

	if stay {
		err = play(working, say, c)
	} else {
		var stop context.CancelFunc
		working, stop = context.WithTimeoutCause(working, atMost, fmt.Errorf("the demonstration took longer than %s", atMost))
		defer stop()
		err = tell(working, say, c, p)
	}
	if ctx.Err() != nil {
		return nil // what was not seen then says nothing
	}
	return err
}

// sayer returns what tells the user a line, with the time since start.
func sayer(start time.Time) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Printf("%5.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}
