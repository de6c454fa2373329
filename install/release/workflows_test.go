package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// root is the directory of the repository.
const root = "../.."

// workflow contains the fields of a workflow that the tests read.
type workflow struct {
	Permissions map[string]string `json:"permissions"`
	Jobs        map[string]struct {
		Strategy struct {
			Matrix struct {
				Version []string `json:"version"`
			} `json:"matrix"`
		} `json:"strategy"`
		Steps []struct {
			Run string `json:"run"`
		} `json:"steps"`
	} `json:"jobs"`
}

// workflows returns the workflows and their texts by the names of their files.
func workflows(t *testing.T) (map[string]workflow, map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("got the workflows %v (error %v)", files, err)
	}
	parsed, texts := map[string]workflow{}, map[string]string{}
	for _, file := range files {
		name, content := filepath.Base(file), read(t, file)
		w := workflow{}
		if err := yaml.Unmarshal(content, &w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		parsed[name], texts[name] = w, string(content)
	}
	return parsed, texts
}

func TestWorkflows_PinActionsByCommit(t *testing.T) {
	_, texts := workflows(t)
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	pinned := regexp.MustCompile(`^([\w-]+/[\w-]+)(?:/[\w-]+)?@([0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	versions := map[string]string{}
	for file, text := range texts {
		for _, use := range uses.FindAllStringSubmatch(text, -1) {
			match := pinned.FindStringSubmatch(use[1])
			if match == nil {
				t.Errorf("%s: %s is not pinned by a commit with its version as a comment", file, use[1])
				continue
			}
			if before := versions[match[1]]; before != "" && before != match[2] {
				t.Errorf("%s: %s is used at %s and %s", file, match[1], before, match[2])
			}
			versions[match[1]] = match[2]
		}
	}
	if len(versions) < 5 {
		t.Errorf("found only the actions %v", versions)
	}
}

func TestWorkflows_CanOnlyReadByDefault(t *testing.T) {
	parsed, _ := workflows(t)
	for file, w := range parsed {
		if diff := cmp.Diff(map[string]string{"contents": "read"}, w.Permissions); diff != "" {
			t.Errorf("%s: permissions (-want +got):\n%s", file, diff)
		}
	}
}

// TestWorkflows_RunTargetsOfTheMakefile lets make print the commands of each target, with the variables of the
// workflow.
func TestWorkflows_RunTargetsOfTheMakefile(t *testing.T) {
	parsed, _ := workflows(t)
	command := regexp.MustCompile(`\bmake (?:--silent )?([a-z-]+)((?: \w+="\$\w+")*)`)
	targets := map[string]bool{}
	for file, w := range parsed {
		for _, job := range w.Jobs {
			value := append(job.Strategy.Matrix.Version, version)[0]
			for _, step := range job.Steps {
				for _, match := range command.FindAllStringSubmatch(step.Run, -1) {
					targets[match[1]] = true
					requireTarget(t, file, match[1]+match[2], value)
				}
			}
		}
	}
	want := []string{"release", "release-check", "release-push", "release-tags-check", "release-verify", "test-long",
		"test-versions", "vulnerabilities"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(targets))); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

// requireTarget runs make with a target and variables, without executing the commands of the target.
func requireTarget(t *testing.T, file, target, version string) {
	t.Helper()
	script := "make --dry-run --no-print-directory -C " + root + " " + target
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	// MAKEFLAGS contains the flags of the make that runs this test.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "VERSION="+version, "RELEASE_BUILDER=https://example.com/builder")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %s: %v\n%s", file, script, err, out)
	}
	if strings.Contains(target, "VERSION") && !bytes.Contains(out, []byte(version)) {
		t.Errorf("%s: %s does not use the version:\n%s", file, script, out)
	}
}

func TestWorkflows_CoverAllVersionsAndModules(t *testing.T) {
	parsed, _ := workflows(t)
	var tested []string
	for _, job := range parsed["nightly.yml"].Jobs {
		tested = append(tested, job.Strategy.Matrix.Version...)
	}
	if diff := cmp.Diff(names(t, filepath.Join(root, "test", "versions")), tested); diff != "" {
		t.Errorf("versions of Kubernetes (-want +got):\n%s", diff)
	}

	var dependabot struct {
		Updates []struct {
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	if err := yaml.Unmarshal(read(t, root, ".github", "dependabot.yml"), &dependabot); err != nil {
		t.Fatal(err)
	}
	modules, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	byHand := regexp.MustCompile(`^/test/(controlplane|kindnode|versions/.*)$|/testdata/`)
	want := []string{}
	for _, file := range strings.Fields(string(modules)) {
		if dir := path.Join("/", path.Dir(file)); !byHand.MatchString(dir) {
			want = append(want, dir)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, dependabot.Updates[0].Directories); diff != "" {
		t.Errorf("modules in dependabot.yml (-want +got):\n%s", diff)
	}
}
