package docs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/internal/testkit"
)

const examplesDir = "examples/blueprints"

// examples contains the folders of examplesDir. Those in a group share a namespace and are tried one after another.
var examples = [][]string{{"webapp"}, {"tenant"}, {"database"}, {"from-kro", "features"}}

// The commands in the README of each example must work in their order and print what the README shows. At the end,
// nothing is left of the examples.
func TestExamples_CommandsOfTheirREADMEsWork(t *testing.T) {
	requireAllExamples(t)
	kubeconfig := startPlatform(t)
	admin := newUser(t, root, kubeconfig)
	before := admin.objects()
	t.Run("examples", func(t *testing.T) {
		for _, group := range examples {
			t.Run(strings.Join(group, " and "), func(t *testing.T) {
				t.Parallel()
				reader := newUser(t, filepath.Join(root, examplesDir), kubeconfig)
				for _, example := range group {
					reader.follow(readDocument(t, filepath.Join(examplesDir, example, "README.md")))
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	testkit.Eventually(t, timeout, func() error {
		left := slices.DeleteFunc(admin.objects(), func(name string) bool { return slices.Contains(before, name) })
		if len(left) > 0 {
			return fmt.Errorf("the examples have left %q", left)
		}
		return nil
	})
}

func requireAllExamples(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, examplesDir))
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(examples...)
	for _, entry := range entries {
		if entry.IsDir() && !slices.Contains(known, entry.Name()) {
			t.Errorf("add %s to the examples of the test", entry.Name())
		}
	}
}

// The commands in examples/blueprints/README.md that need no cluster must work.
func TestExamples_CommandsWithoutAClusterWork(t *testing.T) {
	reader := newUser(t, filepath.Join(root, examplesDir), filepath.Join(t.TempDir(), "none"))
	found := 0
	for _, block := range readDocument(t, filepath.Join(examplesDir, "README.md")).blocks {
		for _, c := range block {
			if strings.HasPrefix(c.text, "dynamic-controller ") {
				reader.run(c)
				found++
			}
		}
	}
	if found < 2 {
		t.Errorf("found %d commands", found)
	}
}

// follow runs the commands of a README.
func (u *user) follow(readme document) {
	u.Helper()
	commands := slices.Concat(readme.blocks...)
	if len(commands) < 5 {
		u.Fatalf("%s: found only the commands %q", readme.path, commands)
	}
	for i, c := range commands {
		start := time.Now()
		u.startFakeControllersIfNeeded(c)
		repeated := slices.ContainsFunc(commands[i+1:], func(later command) bool { return later.text == c.text })
		switch {
		case repeated && strings.HasPrefix(c.text, "kubectl apply "):
			u.failsAtFirst(c)
		case c.output != "":
			u.prints(c)
		default:
			u.run(c)
		}
		u.Logf("%s (%s)", c, time.Since(start).Round(time.Millisecond))
	}
}

// run runs a command that must succeed.
func (u *user) run(c command) {
	u.Helper()
	out, err := u.sh(c.text)
	if err == nil && strings.HasPrefix(c.text, "kubectl get ") && out == "" {
		err = errors.New("no resources found")
	}
	if err != nil {
		u.Fatalf("%s\n%v", c, err)
	}
}

// failsAtFirst runs a command that the README repeats later, because the type of an object does not exist yet.
func (u *user) failsAtFirst(c command) {
	u.Helper()
	if out, err := u.sh(c.text); err == nil || !strings.Contains(err.Error(), "no matches for kind") {
		u.Fatalf("%s\nsucceeded at once, or failed for another reason: %v\n%s", c, err, out)
	}
}

// prints runs a command until it prints the output in the README.
func (u *user) prints(c command) {
	u.Helper()
	want := withoutLayout(c.output)
	testkit.Eventually(u.T, timeout, func() error {
		out, err := u.sh(c.text)
		if got := withoutLayout(out); err == nil && got != want {
			err = fmt.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if err != nil {
			err = fmt.Errorf("%s\n%w", c, err)
		}
		return err
	})
}

var age = regexp.MustCompile(`\b([0-9]+[dhms])+$`)

// withoutLayout replaces spaces between columns with one space, and the age in the last column with AGE.
func withoutLayout(table string) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		if words := strings.Join(strings.Fields(line), " "); words != "" {
			b.WriteString(age.ReplaceAllString(words, "AGE") + "\n")
		}
	}
	return b.String()
}

// objects returns the names of the objects of the kinds that the examples create outside their namespaces.
func (u *user) objects() []string {
	u.Helper()
	out, err := u.sh("kubectl get -o name blueprints,namespaces,crds,clusterroles,clusterrolebindings && " +
		"kubectl get -o name controllerrevisions,roles,rolebindings,serviceaccounts -n " + platformNamespace)
	if err != nil {
		u.Fatal(err)
	}
	return strings.Fields(out)
}
