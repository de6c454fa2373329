package docs

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// checks contains the commands that snippets can use. Nil means that nothing is checked.
var checks = map[string]func(*testing.T, call){
	"kubectl":                checkProgram,
	"helm":                   checkProgram,
	"dynamic-controller":     checkProgram,
	"bin/dynamic-controller": checkProgram,
	"make":                   checkMake,
	"go":                     checkGo,
	"cd":                     checkFolder,
	"cp":                     checkCopy,
	"curl":                   checkCurl,
	"sed":                    checkFiles,
	"benchstat":              nil,
	"git":                    nil,
	"cosign":                 nil,
	"bin/sharded":            nil,
	"diff":                   nil,
	"export":                 nil,
	"gh":                     nil,
	"kill":                   nil,
	"openssl":                nil,
	"sha256sum":              nil,
	"tee":                    nil,
}

func checkProgram(t *testing.T, c call) {
	checkFiles(t, c)
	if err := askForHelp(t, c.args); err != nil {
		t.Error(err)
	}
}

// askForHelp calls a program with one more flag, --help. The program then parses all flags, but does nothing else.
func askForHelp(t *testing.T, args []string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	program := filepath.Join(programs, filepath.Base(args[0]))
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(args[1:]), "--help")...)
	cmd.Env = environment(t, filepath.Join(t.TempDir(), "none"))
	help, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s has not printed its help within %s", args[0], timeout)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, help)
	}
	if name := unknownSubcommand(string(help), args[1:]); name != "" {
		return fmt.Errorf("the subcommand %s does not exist:\n%s", name, help)
	}
	return nil
}

func TestAskForHelp_RejectsUnknownSubcommandsAndFlags(t *testing.T) {
	for text, valid := range map[string]bool{
		"kubectl rollout status a":           true,
		"kubectl rollout states a":           false,
		"kubectl create -f a":                true,
		"kubectl created":                    false,
		"kubectl get -n a --watch":           true,
		"kubectl get -n a --watched":         false,
		"kubectl blueprint tree a":           true,
		"kubectl blueprint trees a":          false,
		"helm uninstall a --keep-history":    true,
		"helm uninstalled a":                 false,
		"helm uninstall a --keep":            false,
		"dynamic-controller status -o wide":  true,
		"dynamic-controller state":           false,
		"dynamic-controller status --output": false,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if err := askForHelp(t, strings.Fields(text)); (err == nil) != valid {
				t.Errorf("got the error %v", err)
			}
		})
	}
}

// unknownSubcommand returns the argument that is not the name of a subcommand, if help is about a command with
// subcommands. A command without a function of its own prints its help if the subcommand is unknown.
func unknownSubcommand(help string, args []string) string {
	_, usage, found := strings.Cut(help, "\nUsage:\n")
	if !found || !strings.Contains(help, "\nAvailable Commands:\n") {
		return ""
	}
	usage, _, _ = strings.Cut(usage, "\n")
	for _, word := range strings.Fields(usage)[1:] {
		if len(args) == 0 || args[0] != word || strings.HasPrefix(word, "-") {
			break
		}
		args = args[1:]
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return ""
	}
	return args[0]
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// checkMake checks that the Makefile has the targets and the variables.
func checkMake(t *testing.T, c call) {
	makefile := readFile(t, "Makefile")
	for _, arg := range c.args[1:] {
		if name, _, ok := strings.Cut(arg, "="); ok {
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(makefile) {
				t.Errorf("the Makefile does not use the variable %s", name)
			}
			continue
		}
		if name, ok := strings.CutPrefix(arg, "example-"); ok {
			arg = "example-%"
			if !isPlaceholder(name) && len(inFolder([]string{root}, "examples/"+name)) == 0 {
				t.Errorf("the example %s does not exist", name)
			}
		}
		if !strings.Contains(makefile, "\n"+arg+":") {
			t.Errorf("the target %s does not exist", arg)
		}
	}
}

// goFlags contains the flags of go that snippets can use. Tests define other flags.
var goFlags = []string{"C", "bench", "benchtime", "c", "count", "modfile", "o", "run", "tags", "timeout", "v"}

// checkGo checks that packages exist, and that they have the benchmarks and the flags.
func checkGo(t *testing.T, c call) {
	switch c.args[1] {
	case "mod", "tool":
		return
	case "build", "run", "test", "vet":
	default:
		t.Fatalf("go %s is an unknown command: add a check to the test", c.args[1])
	}
	if len(c.args) > 3 && c.args[2] == "-C" {
		checkFolder(t, call{args: c.args[:4], dirs: c.dirs})
		c.dirs = inFolder(c.dirs, c.args[3])
	}
	sources := ""
	for _, arg := range c.args[2:] {
		if arg == "." || strings.HasPrefix(arg, "./") {
			sources += c.sources(t, strings.TrimSuffix(arg, "/..."))
		}
	}
	for _, arg := range c.args[2:] {
		name, isFlag := strings.CutPrefix(arg, "-")
		if isFlag && !slices.Contains(goFlags, name) && !strings.Contains(sources, `("`+name+`"`) {
			t.Errorf("the package has no flag %s", arg)
		}
	}
	if i := slices.Index(c.args, "-bench"); i >= 0 {
		names, _, _ := strings.Cut(c.args[i+1], "/")
		for name := range strings.SplitSeq(names, "|") {
			if !regexp.MustCompile(`\nfunc Benchmark\w*` + name).MatchString(sources) {
				t.Errorf("the package has no benchmark %s", name)
			}
		}
	}
}

// sources returns the source files of a package.
func (c call) sources(t *testing.T, path string) string {
	t.Helper()
	for _, dir := range inFolder(c.dirs, path) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(content)
		}
		if all.Len() > 0 {
			return all.String()
		}
	}
	t.Errorf("the package %s does not exist", path)
	return ""
}

func checkFolder(t *testing.T, c call) {
	if name := c.args[len(c.args)-1]; len(inFolder(c.dirs, name)) == 0 {
		t.Errorf("the folder %s does not exist", name)
	}
}

// checkCopy checks that the copied files exist.
func checkCopy(t *testing.T, c call) {
	for _, file := range c.args[1 : len(c.args)-1] {
		if !strings.HasPrefix(file, "-") && !c.exists(file) {
			t.Errorf("%s does not exist", file)
		}
	}
}

// checkCurl checks that the role for operators permits requests for the path.
func checkCurl(t *testing.T, c call) {
	u, err := url.Parse(c.args[len(c.args)-1])
	if err != nil {
		t.Fatal(err)
	}
	if roles := readFile(t, "install/kustomize/rbac.yaml"); !regexp.MustCompile(
		`nonResourceURLs: \[(.*, )?` + regexp.QuoteMeta(u.Path) + `[],]`).MatchString(roles) {
		t.Errorf("the path %s does not exist", u.Path)
	}
}
