package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// tag creates the tag of the version, and a tag for each nested module. In the tagged commit, a nested module requires
// the version of the modules that it otherwise replaces with directories: the engine, and nested modules before it.
// This commit follows the released one, and is on no branch. Nothing is pushed.
func (s *source) tag(ctx context.Context, nested []string, out io.Writer) error {
	if s.dirty {
		return errors.New("a working tree with changes cannot be tagged")
	}
	if s.changes.unreleased {
		return fmt.Errorf("CHANGELOG.md says that %s is not released: replace the remark with the date", s.version)
	}
	tags := s.tags(nested)
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
	// GitHub starts no workflow for more than three tags that are pushed at once, and the workflow needs the nested tags.
	fmt.Fprintln(out, "to publish the release, run")
	if len(tags) > 1 {
		fmt.Fprintln(out, "    git push origin", strings.Join(tags[1:], " "))
	}
	fmt.Fprintln(out, "    git push origin", tags[0])
	return nil
}

// tags returns the tag of the version, and those of nested modules.
func (s *source) tags(nested []string) []string {
	tags := []string{s.version}
	for _, dir := range nested {
		tags = append(tags, dir+"/"+s.version)
	}
	return tags
}

// checkTags returns an error unless all tags exist, and nested modules were tagged for the commit.
func (s *source) checkTags(ctx context.Context, nested []string, out io.Writer) error {
	for i, name := range s.tags(nested) {
		revision := "refs/tags/" + name + "^{commit}"
		if i > 0 {
			revision += "^"
		}
		tagged, err := s.git(ctx, "rev-parse", "--verify", "--quiet", revision)
		if err != nil {
			return fmt.Errorf("the tag %s does not exist: push all tags that make release-tags creates", name)
		}
		if tagged != s.commit {
			return fmt.Errorf("the tag %s is for the commit %s, not %s", name, tagged, s.commit)
		}
		fmt.Fprintln(out, "found the tag", name)
	}
	return nil
}

// commitNested commits the nested modules without replacements in a temporary worktree, and returns the commit.
func (s *source) commitNested(ctx context.Context, nested []string) (string, error) {
	work, err := os.MkdirTemp("", "release-tag-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	tree := filepath.Join(work, "tree")
	if _, err := s.git(ctx, "worktree", "add", "--quiet", "--detach", tree, s.commit); err != nil {
		return "", err
	}
	defer func() { _, _ = s.git(context.WithoutCancel(ctx), "worktree", "remove", "--force", tree) }()
	released := releasedModules{}
	if err := s.release(released, tree, s.commit, ""); err != nil {
		return "", err
	}
	for _, dir := range nested {
		if err := released.require(s.version, filepath.Join(tree, dir)); err != nil {
			return "", err
		}
		if _, err := git(ctx, tree, "add", "--all"); err != nil {
			return "", err
		}
		written, err := git(ctx, tree, "write-tree")
		if err != nil {
			return "", err
		}
		if err := s.release(released, tree, written, dir); err != nil {
			return "", err
		}
	}
	message := "Require " + s.version + " in nested modules"
	if _, err := git(ctx, tree, "commit", "--quiet", "--message", message); err != nil {
		return "", err
	}
	return git(ctx, tree, "rev-parse", "HEAD")
}

// releasedModules contains the lines of go.sum for the version of each module, which no proxy has yet, by module path.
type releasedModules map[string][]string

// release adds the module in a directory of a revision, which can be a tree. The worktree has the same files.
func (s *source) release(released releasedModules, worktree, revision, dir string) error {
	file := filepath.Join(worktree, dir, "go.mod")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	m := module.Version{Path: modfile.ModulePath(content), Version: s.version}
	root, err := filepath.Abs(s.dir)
	if err != nil {
		return err
	}
	archive, err := os.CreateTemp("", "release-module-*.zip")
	if err != nil {
		return err
	}
	defer os.Remove(archive.Name())
	err = zip.CreateFromVCS(archive, m, root, revision, dir)
	if closeErr := archive.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	hash, err := dirhash.HashZip(archive.Name(), dirhash.Hash1)
	if err != nil {
		return err
	}
	modHash, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return err
	}
	released[m.Path] = []string{
		fmt.Sprintf("%s %s %s\n", m.Path, m.Version, hash),
		fmt.Sprintf("%s %s/go.mod %s\n", m.Path, m.Version, modHash),
	}
	return nil
}

// require lets the module in a directory require the version of the modules that it replaces.
func (r releasedModules) require(version, dir string) error {
	file := filepath.Join(dir, "go.mod")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(file, content, nil)
	if err != nil {
		return err
	}
	var sums []string
	for _, replaced := range slices.Clone(mod.Replace) {
		path := replaced.Old.Path
		if r[path] == nil {
			return fmt.Errorf("%s replaces %s, which is not tagged before it", file, path)
		}
		if err := errors.Join(mod.AddRequire(path, version), mod.DropReplace(path, "")); err != nil {
			return err
		}
		sums = append(sums, r[path]...)
	}
	mod.Cleanup()
	if content, err = mod.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(file, content, 0o644); err != nil {
		return err
	}
	slices.Sort(sums)
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
