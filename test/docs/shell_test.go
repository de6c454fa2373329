package docs

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
)

// user is a person with a shell.
type user struct {
	*testing.T
	dir        string // The working directory.
	env        []string
	kubeconfig string
	client     kubernetes.Interface // Of the controllers in the namespace, if they run.
}

func newUser(t *testing.T, dir, kubeconfig string) *user {
	t.Helper()
	return &user{T: t, dir: dir, env: environment(t, kubeconfig), kubeconfig: kubeconfig}
}

// sh runs a command and returns its standard output. The error contains all output.
func (u *user) sh(text string) (string, error) {
	ctx, cancel := context.WithTimeout(u.Context(), commandTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", text)
	cmd.Dir, cmd.Env = u.dir, u.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, stdout.String(), stderr.String())
	}
	return stdout.String(), err
}
