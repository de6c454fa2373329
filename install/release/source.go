package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// source is a commit of the repository.
type source struct {
	dir, version string
	allowDirty   bool

	module, commit string
	dirty          bool
	date           time.Time // SOURCE_DATE_EPOCH, or the time of the commit
	changes        changes
}

// open reads the commit. It returns an error if the commit cannot be released as the version.
func (s *source) open(ctx context.Context) error {
	switch {
	case s.version == "":
		return errors.New("the version is missing: set it, for example VERSION=v0.1.0")
	case semver.Canonical(s.version) != s.version:
		return fmt.Errorf("the version %q is not a semantic version that starts with v, such as v0.1.0", s.version)
	}
	var err error
	if s.commit, err = s.git(ctx, "rev-parse", "--verify", "HEAD"); err != nil {
		return fmt.Errorf("%s must be a git clone: %w", s.dir, err)
	}
	if err := s.requireClean(ctx); err != nil {
		return err
	}
	if err := s.requireTag(ctx); err != nil {
		return err
	}
	if s.date, err = s.sourceDate(ctx); err != nil {
		return err
	}
	file := filepath.Join(s.dir, "go.mod")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if s.module = modfile.ModulePath(content); s.module == "" {
		return fmt.Errorf("%s has no module path", file)
	}
	s.changes, err = readChanges(filepath.Join(s.dir, "CHANGELOG.md"), s.version)
	return err
}

// requireClean returns an error if there are changes that are not committed.
func (s *source) requireClean(ctx context.Context) error {
	status, err := s.git(ctx, "status", "--porcelain")
	if err != nil || status == "" {
		return err
	}
	s.dirty = true
	if !s.allowDirty {
		return fmt.Errorf("the working tree has changes: commit them, or set ALLOW_DIRTY=1 for a trial:\n%s", status)
	}
	s.commit += "-dirty"
	return nil
}

// requireTag returns an error if the version is the tag of another commit.
func (s *source) requireTag(ctx context.Context) error {
	tagged, err := s.git(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+s.version+"^{commit}")
	if err != nil || tagged == strings.TrimSuffix(s.commit, "-dirty") { // an error means that the tag does not exist
		return nil
	}
	return fmt.Errorf("the tag %s is the commit %s, not %s: check it out, or choose another version", s.version, tagged,
		s.commit)
}

// sourceDate returns the time in SOURCE_DATE_EPOCH, or the time of the commit.
func (s *source) sourceDate(ctx context.Context) (time.Time, error) {
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		var err error
		if epoch, err = s.git(ctx, "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%s is not a number of seconds", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// git returns the output of a git command in the repository.
func (s *source) git(ctx context.Context, args ...string) (string, error) {
	return git(ctx, s.dir, args...)
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// changes is the section of a version in CHANGELOG.md.
type changes struct {
	text       string
	unreleased bool // whether the heading says that the version is not released yet
}

// heading matches the heading of a section, such as "## 0.1.0 (2026-11-26)".
var heading = regexp.MustCompile(`(?m)^## (.*)$`)

// readChanges returns the section of a version, whose heading is the version without v, and can have a remark in
// parentheses.
func readChanges(file, version string) (changes, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return changes{}, err
	}
	want, text := strings.TrimPrefix(version, "v"), string(content)
	for _, at := range heading.FindAllStringSubmatchIndex(text, -1) {
		title := text[at[2]:at[3]]
		name, remark, _ := strings.Cut(title, " (")
		if name != want {
			continue
		}
		section := text[at[1]:]
		if next := heading.FindStringIndex(section); next != nil {
			section = section[:next[0]]
		}
		return changes{strings.TrimSpace(section) + "\n", strings.HasPrefix(remark, "not released")}, nil
	}
	return changes{}, fmt.Errorf("%s has no section %q: describe the changes of %s there", file, "## "+want, version)
}
