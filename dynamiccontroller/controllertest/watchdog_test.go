package controllertest_test

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

const hangEnv = "CONTROLLERTEST_HANG"

// WaitIdle hangs if a handler reads from a real connection. The process that hangs is a copy of the test.
func TestWaitIdle_EndsTheProcessIfAHandlerWaitsForTheNetwork(t *testing.T) {
	if os.Getenv(hangEnv) != "" {
		waitForTheNetwork(t)
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program, "-test.run=^"+t.Name()+"$", "-test.timeout=4m")
	child.Env = append(os.Environ(), hangEnv+"=1")
	output, err := child.CombinedOutput()
	if err == nil {
		t.Fatal("the process has succeeded")
	}
	for _, want := range []string{
		"panic: controllertest: WaitIdle: a goroutine of the bubble waited for the network at each check of the last 5s",
		t.Name(),
		"waitForTheNetwork",
	} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the output does not contain %q:\n%s", want, output)
		}
	}
}

// waitForTheNetwork runs a controller whose handler reads from a connection on which nothing arrives.
func waitForTheNetwork(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		controller := newController(t, server)
		serve(t, controller, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			connection, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				return err
			}
			defer connection.Close()
			_, err = bufio.NewReader(connection).ReadString('\n')
			return err
		})
		controllertest.Run(t, controller.Run)
		server.Apply(widget("first", 1))
		controllertest.WaitIdle(t, controller)
	})
}
