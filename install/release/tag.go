package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// tag creates the tag of the version, and a tag for each nested module. In the tagged commit, a nested module requires
// the version instead of replacing the engine with a directory. This commit follows the released one, and is on no
// branch. Nothing is pushed.
func (s *source) tag(ctx context.Context, nested []string, out io.Writer) error {
	if s.dirty {
		return errors.New("a working tree with changes cannot be tagged")
	}
	if s.changes.unreleased {
		return fmt.Errorf("CHANGELOG.md says that %s is not released: replace the remark with the date", s.version)
	}
	tags := []string{s.version}
	for _, dir := range nested {
		tags = append(tags, dir+"/"+s.version)
	}
	for _, name := range tags {
		if _, err := s.git(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+name); err == nil {
			return fmt.Errorf("the tag %s exists already", name)
		}
	}
	commit, err := s.commitNested(ctx, nested)
	if err != nil {
		return err
	}
	for i, name := range tags {
		of := s.commit
		if i > 0 {
			of = commit
		}
		if _, err := s.git(ctx, "tag", "--annotate", "--message", name, name, of); err != nil {
			return err
		}
		fmt.Fprintln(out, "created the tag", name)
	}
	fmt.Fprintln(out, "to publish the release, run")
	fmt.Fprintln(out, "    git push origin", strings.Join(tags, " "))
	return nil
}

// commitNested commits the nested modules without replacements in a temporary worktree, and returns the commit.
func (s *source) commitNested(ctx context.Context, nested []string) (string, error) {
	work, err := os.MkdirTemp("", "release-tag-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	sums, err := s.sums(filepath.Join(work, "module.zip"))
	if err != nil {
		return "", err
	}
	tree := filepath.Join(work, "tree")
	if _, err := s.git(ctx, "worktree", "add", "--quiet", "--detach", tree, s.commit); err != nil {
		return "", err
	}
	defer func() { _, _ = s.git(context.WithoutCancel(ctx), "worktree", "remove", "--force", tree) }()
	for _, dir := range nested {
		if err := s.requireVersion(filepath.Join(tree, dir), sums); err != nil {
			return "", err
		}
	}
	message := "Require " + s.version + " in nested modules"
	if _, err := git(ctx, tree, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := git(ctx, tree, "commit", "--quiet", "--message", message); err != nil {
		return "", err
	}
	return git(ctx, tree, "rev-parse", "HEAD")
}

// sums returns the lines of go.sum for the version, which no proxy has yet.
func (s *source) sums(archive string) ([]string, error) {
	f, err := os.Create(archive)
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(s.dir)
	if err == nil {
		err = zip.CreateFromVCS(f, module.Version{Path: s.module, Version: s.version}, root, s.commit, "")
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, err
	}
	hash, err := dirhash.HashZip(archive, dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	modHash, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return os.Open(filepath.Join(s.dir, "go.mod"))
	})
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%s %s %s\n", s.module, s.version, hash),
		fmt.Sprintf("%s %s/go.mod %s\n", s.module, s.version, modHash),
	}, nil
}

// requireVersion lets a nested module require the version, and removes the replacement.
func (s *source) requireVersion(dir string, sums []string) error {
	path := filepath.Join(dir, "go.mod")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(path, content, nil)
	if err != nil {
		return err
	}
	if err := mod.AddRequire(s.module, s.version); err != nil {
		return err
	}
	if err := mod.DropReplace(s.module, ""); err != nil {
		return err
	}
	mod.Cleanup()
	if len(mod.Replace) > 0 {
		return fmt.Errorf("%s replaces other modules than %s", path, s.module)
	}
	if content, err = mod.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return addLines(filepath.Join(dir, "go.sum"), sums)
}

// addLines inserts lines in a sorted file.
func addLines(path string, lines []string) error {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var all []string
	for line := range strings.Lines(string(content)) {
		for len(lines) > 0 && lines[0] < line {
			all, lines = append(all, lines[0]), lines[1:]
		}
		all = append(all, line)
	}
	return os.WriteFile(path, []byte(strings.Join(append(all, lines...), "")), 0o644)
}
