package platform

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	// Name is the name of the program, of its image and of its chart.
	Name = "dynamic-controller"
	// program is the folder of the platform, which is a module.
	program = "cmd/" + Name
)

// Build describes what is built.
type Build struct {
	Version, Commit string    // printed by the binary
	Date            time.Time // the time of everything that has one
}

// Target is an operating system and an architecture, with the names that Go uses.
type Target struct{ OS, Arch string }

// String returns the name that Go uses, such as linux/amd64.
func (t Target) String() string { return t.OS + "/" + t.Arch }

// Compile builds a static binary that contains no paths from this machine.
func (b Build) Compile(ctx context.Context, source string, target Target, output string, log io.Writer) error {
	output, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	ldflags := fmt.Sprintf("-s -w -X main.version=%s -X main.commit=%s", b.Version, b.Commit)
	// The version and the commit are those above, so that a copy of the files without .git has the same result.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", output, ".")
	cmd.Dir = filepath.Join(source, filepath.FromSlash(program))
	// The last value of each variable takes effect. GOAMD64 and GOARM64 select the minimum level, regardless of this
	// machine. GOFLAGS could contain tags.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+target.OS, "GOARCH="+target.Arch, "GOAMD64=v1",
		"GOARM64=v8.0", "GOFLAGS=-buildvcs=false", "GOEXPERIMENT=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build for %s: %w", target, err)
	}
	return nil
}
