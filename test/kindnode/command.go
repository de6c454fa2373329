package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// A command runs a program. If the program fails, the error contains the program's output.
type command struct {
	dir  string
	env  []string // In addition to the environment of this process.
	args []string
}

func (c command) run(ctx context.Context) error {
	_, err := c.output(ctx)
	return err
}

func (c command) output(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	var stdout, all bytes.Buffer
	cmd.Stdout = io.MultiWriter(&stdout, &all)
	cmd.Stderr = &all
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(c.args, " "), err, lastLines(all.String()))
	}
	return stdout.String(), nil
}

func lastLines(output string) string {
	const maxLines = 40
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-maxLines):], "\n")
}
