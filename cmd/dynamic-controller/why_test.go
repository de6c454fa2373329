package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
)

// ask runs a command of the program against the cluster. It returns the output and the exit code.
func (a *api) ask(args ...string) (out string, code int) {
	a.Helper()
	return a.askAs(a.cluster.Kubeconfig(), args...)
}

func (a *api) askAs(kubeconfig string, args ...string) (out string, code int) {
	a.Helper()
	commands := 1
	if args[0] == cobra.ShellCompRequestCmd {
		commands = 2
	}
	all := slices.Concat(args[:commands], []string{"--kubeconfig", kubeconfig, "-n", a.namespace},
		a.expandGroup(args[commands:]))
	data, err := exec.CommandContext(a.Context(), binary, all...).CombinedOutput()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		code = failed.ExitCode()
	case err != nil:
		a.Fatal(err)
	}
	return string(data), code
}

func (a *api) expandGroup(words []string) (expanded []string) {
	for _, word := range words {
		expanded = append(expanded, strings.ReplaceAll(word, "GROUP", a.group))
	}
	return expanded
}

// waitWhy waits until the first line of "why" contains the words and the exit code is as expected.
func (a *api) waitWhy(target string, code int, words ...string) (out string) {
	a.Helper()
	eventually(a.T, func() error {
		got := 0
		out, got = a.ask("why", target)
		first, _, _ := strings.Cut(out, "\n")
		for _, word := range a.expandGroup(words) {
			if word = strings.ReplaceAll(word, "NAMESPACE", a.namespace); !strings.Contains(first, word) {
				return fmt.Errorf("why %s: the first line does not contain %q: %s", target, word, out)
			}
		}
		if got != code {
			return fmt.Errorf("why %s: the exit code is %d, want %d: %s", target, got, code, out)
		}
		return nil
	})
	return out
}

const secretText = "hunter2-in-a-child"

// whyCase is a state of a Blueprint or an instance.
type whyCase struct {
	objects []string               // to apply, in this order
	prepare func(*testing.T, *api) // after the objects have been applied
	target  string                 // the argument of why
	code    int                    // the exit code
	first   []string               // in the first line
	action  string                 // anywhere in the output
	after   func(*api)             // before the objects are deleted
}

func whyCases() map[string]whyCase {
	asWeb := func(text string) string {
		return changed(text, change{"spec:\n", "spec:\n  serviceAccountName: web\n"})
	}
	waitReady := func(t *testing.T, a *api) { a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True")) }
	const held = "{apiVersion: v1, kind: ConfigMap, metadata: {name: s-app, finalizers: [%s]}}"
	const web = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: web}}"
	return map[string]whyCase{
		"healthy instance": {
			objects: []string{websites, flowers}, target: "website.GROUP/flowers",
			first: []string{"Website NAMESPACE/flowers is Ready: all 3 resources are ready"},
		},
		"healthy Blueprint": {
			objects: []string{websites}, target: "bp/websites.GROUP",
			first: []string{"Blueprint websites.GROUP is Ready: generation 1 is served"},
		},
		"unknown type": {
			target: "gadget/flowers", code: 2, first: []string{`unknown type "gadget"`, "kubectl api-resources"},
		},
		"unknown instance": {
			objects: []string{websites}, target: "websites.GROUP/missing", code: 2,
			first: []string{`websites.GROUP "missing" not found in namespace NAMESPACE`},
		},
		"template error": {
			objects: []string{changed(websites, change{"${self.spec.text}", "${self.spec.txt}"})},
			target:  "blueprints/websites.GROUP", code: 1,
			first:  []string{`is Failing: Invalid: spec.resources[1].template.data.text: ${self.spec.txt}: unknown field "txt"`},
			action: "-> fix the Blueprint and apply it again",
		},
		"instance of a type that is not served yet": {
			objects: []string{changed(websites, change{"${self.spec.text}", "${self.spec.txt}"})},
			target:  "website.GROUP/flowers", code: 1,
			first: []string{"Blueprint websites.GROUP is Failing: Invalid: ", `unknown field "txt"`},
		},
		"unknown kind": {
			objects: []string{changed(websites, change{"kind: Service", "kind: Servant"})},
			target:  "blueprint/websites.GROUP", code: 1,
			first: []string{"Invalid: spec.resources[2].template: unknown kind Servant in v1"},
		},
		"claimed type": {
			objects: []string{websites}, target: "blueprint/aaa.GROUP", code: 1,
			prepare: func(_ *testing.T, a *api) {
				a.waitBlueprint("websites", is("Serving", "True"))
				a.apply(changed(websites, change{"name: websites.GROUP", "name: aaa.GROUP"}))
			},
			first:  []string{"TypeClaimed: ", "already claimed by Blueprint websites.GROUP"},
			action: "-> use another type",
		},
		"no ServiceAccount": {
			objects: []string{asWeb(websites), flowers}, target: "website.GROUP/flowers", code: 1,
			first:  []string{"ServiceAccountNotFound: ServiceAccount NAMESPACE/web: not found"},
			action: "-> create it with the annotation platform.example.com/allowed-blueprints=",
		},
		"no consent": {
			objects: []string{web, asWeb(websites), flowers},
			target:  "website.GROUP/flowers", code: 1,
			first:  []string{"ConsentMissing: ServiceAccount NAMESPACE/web does not allow Blueprint websites.GROUP"},
			action: "-> run kubectl annotate serviceaccount -n ",
		},
		"forbidden child": {
			objects: []string{web, asWeb(websites), flowers},
			prepare: func(_ *testing.T, a *api) { a.consent(a.namespace, "web", "websites."+a.group) },
			target:  "website.GROUP/flowers", code: 1,
			first:  []string{"Website NAMESPACE/flowers is Failing: Forbidden: ", `cannot patch resource "`},
			action: "--verb=get,create,patch,delete --resource=",
		},
		"readyWhen": {
			objects: []string{
				changed(websites, change{"service.spec.clusterIP != ''", "service.spec.clusterIP == ''"}), flowers,
			},
			target: "website.GROUP/flowers", code: 1,
			first:  []string{"is Waiting: Waiting: ", `service: waiting for readyWhen "service.spec.clusterIP == ''"`},
			action: "-> wait. ",
		},
		"conflict": {
			objects: []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: flowers-page}}", websites, flowers},
			target:  "website.GROUP/flowers", code: 1,
			first:  []string{"is Failing: Conflict: page: ConfigMap NAMESPACE/flowers-page: "},
			action: "-> set adopt: true on the resource, or delete the object",
		},
		"rejected child": {
			objects: []string{websites, changed(flowers, change{"flowers", strings.Repeat("long-", 20) + "name"})},
			target:  "website.GROUP/" + strings.Repeat("long-", 20) + "name", code: 1,
			first: []string{"is Failing: Rejected: ", "must be no more than 63"},
		},
		"paused instance": {
			objects: []string{websites, flowers}, target: "website.GROUP/flowers", code: 1,
			prepare: func(t *testing.T, a *api) {
				waitReady(t, a)
				a.annotate("GROUP/v1", "Website", "flowers", "platform.example.com/paused", "true")
			},
			first:  []string{"is Paused: InstancePaused: it is not reconciled while the instance has the annotation"},
			action: "-> kubectl annotate websites.",
		},
		"paused Blueprint": {
			objects: []string{websites, flowers}, target: "website.GROUP/flowers", code: 1,
			prepare: func(t *testing.T, a *api) {
				waitReady(t, a)
				a.annotate(blueprintVersion, "Blueprint", "websites."+a.group, "platform.example.com/paused", "true")
			},
			first: []string{"is Paused: BlueprintPaused: "},
		},
		"blocked deletion": {
			objects: []string{stacks, stack}, target: "stack.GROUP/s", code: 1,
			prepare: func(_ *testing.T, a *api) {
				a.wait("GROUP/v1", "Stack", "s", is("Ready", "True"))
				a.apply(fmt.Sprintf(held, "example.com/x"))
				a.delete("GROUP/v1", "Stack", "s")
			},
			after: func(a *api) { a.apply(fmt.Sprintf(held, "")) },
			first: []string{
				"is Deleting: ConfigMap NAMESPACE/s-app: BlockedByFinalizer: ", "finalizer example.com/x (resource app)",
			},
			action: "kubectl edit configmaps s-app -n ",
		},
		"nested instance": {
			objects: []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: monday-page}}", websites, markets, market},
			target:  "market.GROUP/monday", code: 1,
			first: []string{"Market NAMESPACE/monday is Waiting: Website NAMESPACE/monday: Conflict: page: ConfigMap "},
		},
	}
}

// The first line of the answer names the cause.
func TestWhy_NamesTheCauseFirst(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(websites, change{"name: websites.GROUP", "name: first.GROUP"}, change{"kind: Website", "kind: First"}))
	for name, test := range whyCases() {
		t.Run(name, func(t *testing.T) {
			sub := *a
			sub.T = t
			slug := strings.ToLower(strings.ReplaceAll(name, " ", "-"))
			sub.group = slug + "." + a.group
			sub.namespace = sub.addNamespace(a.namespace + "-" + slug[:min(len(slug), 20)])
			for _, text := range test.objects {
				sub.apply(text)
			}
			if test.prepare != nil {
				test.prepare(t, &sub)
			}
			out := sub.waitWhy(test.target, test.code, test.first...)
			if name == "no consent" {
				want := strings.NewReplacer("shop", sub.namespace, "websites", "websites."+sub.group).
					Replace(documented(t, "Website "))
				if !strings.HasPrefix(out, want) {
					t.Errorf("docs/operations.md contains %s, but the output is %s", want, out)
				}
			}
			if !strings.Contains(out, test.action) {
				t.Errorf("the output does not contain %q: %s", test.action, out)
			}
			if test.after != nil {
				test.after(&sub)
			}
		})
	}
}

// Neither of the commands prints the content of Secrets.
func TestWhy_Formats(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(making("Vault", `{apiVersion: v1, kind: Secret, metadata: {name: "${self.metadata.name}"},
        stringData: {text: "${self.spec.a}"}}`)))
	a.apply("{apiVersion: GROUP/v1, kind: Vault, metadata: {name: safe}, spec: {a: " + secretText + "}}")
	a.wait("GROUP/v1", "Vault", "safe", is("Ready", "True"))
	eventually(t, func() error { // events are written later than the status
		if out, _ := a.ask("why", "vault.GROUP/safe"); !strings.Contains(out, "ChildrenApplied") {
			return errors.New(out)
		}
		return nil
	})
	for _, format := range []string{"text", "wide", "json", "yaml"} {
		for _, command := range []string{"why", "tree"} {
			out, code := a.ask(command, "vault.GROUP/safe", "-o", format)
			if code != 0 || strings.Contains(out, secretText) {
				t.Errorf("%s -o %s: got the exit code %d, and %s", command, format, code, out)
			}
		}
	}
	out, _ := a.ask("why", "vault.GROUP", "safe", "-o", "wide")
	for _, want := range []string{
		"Conditions:", "Children:", "Secret " + a.namespace + "/safe   Ready   child   0", "Events:",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("-o wide: got %s, want %q", out, want)
		}
	}
	var report explain.Report
	out, _ = a.ask("why", "vault.GROUP/safe", "-o", "json")
	if err := json.Unmarshal([]byte(out), &report); err != nil || !report.Healthy || len(report.Children) != 1 {
		t.Errorf("-o json: got %v, %s", err, out)
	}
	var tree explain.Node
	out, _ = a.ask("tree", "vault.GROUP/safe", "-o", "yaml")
	if err := yaml.Unmarshal([]byte(out), &tree); err != nil || len(tree.Children) != 1 ||
		tree.Children[0].Object != "Secret "+a.namespace+"/safe" {
		t.Errorf("-o yaml: got %v, %s", err, out)
	}
	out, code := a.ask("tree", "blueprint/vaults.GROUP")
	if code != 0 || !strings.Contains(out, "└─ Vault "+a.namespace+"/safe") {
		t.Errorf("tree of a Blueprint: got the exit code %d, and %s", code, out)
	}
	for name, args := range map[string][]string{
		"unknown format": {"why", "vault.GROUP/safe", "-o", "xml"}, "no name": {"why", "vault.GROUP"},
		"missing object": {"why", "configmap/missing"}, "Secret": {"tree", "secret/safe"},
	} {
		if out, code := a.ask(args...); code != 2 {
			t.Errorf("%s: got the exit code %d, and %s", name, code, out)
		}
	}
	for word, want := range map[string]string{"vault.GROUP/": "vault.GROUP/safe\n", "": "vaults.GROUP/\n"} {
		out, _ := a.ask(cobra.ShellCompRequestCmd, "why", word)
		if !strings.Contains(out, strings.ReplaceAll(want, "GROUP", a.group)) {
			t.Errorf("completion of %q: got %s", word, out)
		}
	}

	p.kill()
	a.apply("{apiVersion: GROUP/v1, kind: Vault, metadata: {name: late}}")
	a.waitWhy("vault.GROUP/late", 1, "is Waiting: NotReconciled: the platform has not reconciled it yet")
}

// The output contains the objects that the user can read, and lists the resources that the user cannot read.
func TestWhy_WithoutPermissions(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(making("Gate", `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: "${self.metadata.name}"},
        spec: {defaultBackend: {service: {name: flowers, port: {number: 80}}}}}`))
	a.apply("{apiVersion: GROUP/v1, kind: Gate, metadata: {name: main}}")
	a.wait("GROUP/v1", "Gate", "main", is("Ready", "True"))
	if out, code := a.ask("why", "cm/flowers-page"); code != 2 || !strings.Contains(out,
		"flowers-page is a child of Website flowers in namespace "+a.namespace+": use that object instead") {
		t.Errorf("a child: got the exit code %d, and %s", code, out)
	}
	tree, _ := a.ask("tree", "website.GROUP/flowers")
	if got, want := normal(tree), normal(documented(t, "NAME ")); got != strings.ReplaceAll(want, "shop", a.namespace) {
		t.Errorf("got %s, but docs/operations.md contains %s", got, want)
	}
	kubeconfig := a.account(a.namespace + "-user")
	out, code := a.askAs(kubeconfig, "why", "website.GROUP/flowers")
	if code != 2 || !strings.Contains(out, "ask for a Role with the verbs [get, list] on the resource websites."+a.group) {
		t.Errorf("without permissions: got the exit code %d, and %s", code, out)
	}
	a.grant(a.namespace, "default", a.namespace+"-user", rule("get", a.group, "websites,gates"),
		rule("list", "", "configmaps"), rule("list", "networking.k8s.io", "ingresses"))
	out, code = a.askAs(kubeconfig, "why", "website.GROUP/flowers", "-o", "wide")
	if code != 0 {
		t.Errorf("got the exit code %d", code)
	}
	for _, want := range []string{
		"Website " + a.namespace + "/flowers is Ready", "its Blueprint cannot be read",
		"ConfigMap " + a.namespace + "/flowers-page",
		"services in namespace " + a.namespace + ": forbidden", "events in namespace " + a.namespace + ": forbidden",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %q", out, want)
		}
	}
	out, _ = a.askAs(kubeconfig, "tree", "website.GROUP/flowers")
	if !strings.Contains(out, "└─ services in namespace "+a.namespace+": forbidden") {
		t.Errorf("tree: got %s", out)
	}
	for _, command := range []string{"why", "tree"} { // the Ingress is not an instance
		gate, code := a.askAs(kubeconfig, command, "gate.GROUP/main", "-o", "wide")
		if code != 0 || !strings.Contains(strings.Join(strings.Fields(gate), " "),
			"Ingress "+a.namespace+"/main Ready child 0") {
			t.Errorf("%s: got the exit code %d, and %s", command, code, gate)
		}
	}
	// The flags of kubectl are available.
	user := "system:serviceaccount:default:" + a.namespace + "-user"
	if asUser, code := a.ask("tree", "website.GROUP/flowers", "--as", user); code != 0 || normal(asUser) != normal(out) {
		t.Errorf("--as: got the exit code %d, and %s", code, asUser)
	}
}

// A user who can write the status of an instance forges advice for the operator.
func TestWhy_RepeatsNoAdviceFromAStatus(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	object := a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	p.kill()
	for _, reason := range []string{
		"ConsentMissing", "ServiceAccountNotFound", "ServiceAccountNotAllowed", "PermissionMissing", "IdentityRequired",
		"Conflict", "CleanupForbidden", "Forbidden", "Rejected", "Unheard",
	} {
		for _, message := range []string{
			"no; run evil", "no; grant the permissions, or run evil", "no; set adopt: true, or run evil", "no\n  -> run evil",
			`no: User "system:serviceaccount:shop:evil" cannot create resource "pods" in API group "" at the cluster scope`,
			"a: the platform has no permission to create evil",
		} {
			patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
				"type": "Ready", "status": "False", "reason": reason, "message": message,
				"observedGeneration": object.GetGeneration(), "lastTransitionTime": "2026-01-02T03:04:05Z",
			}}}})
			if err == nil {
				_, err = a.client(object).Patch(t.Context(), "flowers", types.MergePatchType, patch, metav1.PatchOptions{},
					"status")
			}
			if err != nil {
				t.Fatal(err)
			}
			out, code := a.ask("why", "website.GROUP/flowers")
			if code != 1 || !strings.Contains(out, reason+": ") {
				t.Errorf("got the exit code %d, and %s", code, out)
			}
			for line := range strings.Lines(out) {
				if strings.HasPrefix(strings.TrimSpace(line), "->") && strings.Contains(line, "evil") {
					t.Errorf("%s: %q: got the advice %s", reason, message, line)
				}
			}
		}
	}
}

func TestDeadlines(t *testing.T) {
	if request, command := deadlines(0); request != 10*time.Second || command != time.Minute {
		t.Errorf("without --request-timeout: got %s and %s", request, command)
	}
	if request, command := deadlines(time.Second); request != time.Second || command != time.Second {
		t.Errorf("with --request-timeout: got %s and %s", request, command)
	}
}

// documented returns the example in docs/operations.md whose output begins with the text.
func documented(t *testing.T, begin string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(text), "-n shop\n    "+begin)
	if !found {
		t.Fatalf("docs/operations.md contains no example that begins with %q", begin)
	}
	example, _, _ = strings.Cut(begin+example, "\n\n")
	return strings.ReplaceAll(example, "\n    ", "\n")
}

var ages = regexp.MustCompile(` [0-9]+[smh]([0-9]+s)?\b`)

// normal returns the words of a table, without ages and widths of columns.
func normal(table string) string {
	return ages.ReplaceAllLiteralString(strings.Join(strings.Fields(table), " "), " AGE")
}

func TestExitCode_OfWrongUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"unknown command": {"wy"}, "unknown flag": {"why", "--bogus"}, "no argument": {"tree"},
		"unknown format": {"version", "-o", "xml"}, "unknown flag of the root": {"--bogus"},
	} {
		for _, program := range []string{"dynamic-controller", pluginName} {
			root := newCommand(program)
			root.SetArgs(args)
			if cmd, err := root.ExecuteContextC(t.Context()); exitCode(cmd, err) != 2 {
				t.Errorf("%s of %s: got the exit code %d for %v", name, program, exitCode(cmd, err), err)
			}
		}
	}
}

func TestPrintError_ReplacesControlCharacters(t *testing.T) {
	var b strings.Builder
	printError(&b, "kubectl blueprint", errors.New("a is a child of X\x1b[2J y\u009bc\x07\nuse that\tobject instead"))
	if want := "kubectl blueprint: a is a child of X?[2J y?c?\nuse that\tobject instead\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// The error of a command contains its argument.
func TestCommands_PrintErrorsWithoutControlCharacters(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), binary, "why", "a\x1b[2Jb").CombinedOutput()
	if err == nil || strings.Contains(string(out), "\x1b") || !strings.HasPrefix(string(out), "dynamic-controller: ") {
		t.Errorf("got %v, %q", err, out)
	}
	out, err = exec.CommandContext(t.Context(), binary, "validate", "a\x1b[2Jb").CombinedOutput()
	if err == nil || strings.Contains(string(out), "\x1b") || !strings.Contains(string(out), "a?[2Jb") {
		t.Errorf("got %v, %q", err, out)
	}
}

// kubectl runs executables named kubectl-NAME as plugins.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	run := func(code int, name string, args ...string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(binary, path); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), path, args...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("%s %v: got the exit code %d, want %d", name, args, got, code)
		}
		return string(out)
	}
	help := run(0, "kubectl-blueprint", "--help")
	for _, command := range []string{"why", "tree", "status", "types", "parked", "validate", "render"} {
		if !strings.Contains(help, "\n  "+command+" ") {
			t.Errorf("the help does not contain %q: %s", command, help)
		}
	}
	if strings.Contains(help, "\n  run ") || !strings.Contains(help, "kubectl blueprint [command]") {
		t.Errorf("got the help %s", help)
	}
	if out := run(2, "kubectl-blueprint", "run"); !strings.HasPrefix(out, `kubectl blueprint: unknown command "run"`) {
		t.Errorf("run: got %s", out)
	}
	if out := run(0, "kubectl_complete-blueprint", "w"); !strings.HasPrefix(out, "why\t") {
		t.Errorf("completion: got %s", out)
	}
}
