package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// program is the package of the platform.
const program = "./cmd/dynamic-controller"

// build describes what is built.
type build struct {
	version, commit string
	date            time.Time
}

// compile builds a static binary that contains no paths from this machine.
func (b build) compile(ctx context.Context, source, arch, output string, log io.Writer) error {
	output, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	ldflags := fmt.Sprintf("-s -w -X main.version=%s -X main.commit=%s", b.version, b.commit)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", ldflags, "-o", output, program)
	cmd.Dir = source
	// The last value of each variable takes effect. GOAMD64 and GOARM64 select the minimum level, regardless of this
	// machine.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build for linux/%s: %w", arch, err)
	}
	return nil
}
