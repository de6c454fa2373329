package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/offline"
)

// validate runs the validate command and returns its output.
func validate(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand("dynamic-controller")
	cmd.SetArgs(append([]string{"validate"}, args...))
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); (out.Len() > 0) != errors.Is(err, offline.ErrProblems) {
		t.Fatalf("got error %v and output %s", err, out.String())
	}
	return out.String()
}

func TestValidate_ReportsMistakesLikeTheCluster(t *testing.T) {
	for name, test := range mistakes() {
		text := strings.ReplaceAll(changed(websites, test.changes...), "GROUP", "shop.example.com")
		want := append(slices.Clone(test.want), test.rejected)
		if test.offline != "" {
			want = []string{test.offline}
		}
		got := validate(t, text, "-")
		for _, w := range want {
			w, _, _ = strings.Cut(w, "; the Blueprint ") // the rest differs from the output of validate
			if w != "Invalid" && !strings.Contains(got, w) || got == "" {
				t.Errorf("%s: got %s; want %q", name, got, w)
			}
		}
	}
	if got := validate(t, strings.ReplaceAll(websites+"---"+flowers, "GROUP", "shop.example.com"), "-"); got != "" {
		t.Errorf("valid Blueprint: got %s", got)
	}
}

// The Accepted condition must have the same messages as the output of validate. validate must report problems for
// Blueprints that the API server rejects.
func TestValidate_AgreesWithTheCluster(t *testing.T) {
	files, err := filepath.Glob("internal/offline/testdata/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../../examples/demo/webapps.yaml")
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(websites, change{"name: websites.GROUP", "name: first.GROUP"}, change{"kind: Website", "kind: First"}))
	compared := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sub := *a
		sub.group = strings.TrimSuffix(filepath.Base(file), ".yaml") + "-" + filepath.Base(filepath.Dir(file)) + "." + a.group
		t.Run(strings.TrimPrefix(file, "internal/offline/"), func(t *testing.T) {
			sub.T = t
			text := strings.NewReplacer("shop.example.com", sub.group, "demo.example.com", sub.group,
				"name: webapps", "name: webapps."+sub.group).Replace(string(data))
			compared += sub.compare(text)
		})
	}
	if compared < 8 {
		t.Errorf("only %d Blueprints were compared", compared)
	}
}

// compare applies the objects in a file and compares the results. It returns the number of Blueprints.
func (a *api) compare(text string) (blueprints int) {
	a.Helper()
	byBlueprint := map[string][]string{} // problems by name
	for line := range strings.Lines(validate(a.T, text, "-")) {
		_, problem, _ := strings.Cut(line, ": ")
		if name, problem, is := strings.Cut(strings.TrimPrefix(problem, "blueprint/"), ": "); is {
			byBlueprint[name] = append(byBlueprint[name], strings.TrimSpace(problem))
		}
	}
	objects := a.objects(text)
	// Apply types first, so that no Blueprint is rejected because a type does not exist yet.
	slices.SortStableFunc(objects, func(x, y *unstructured.Unstructured) int {
		return strings.Compare(y.GetKind(), x.GetKind())
	})
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			a.Fatal(err)
		}
		if object.GetKind() == "CustomResourceDefinition" {
			a.apply(string(text))
			continue
		}
		if object.GroupVersionKind() != blueprint.GroupVersionKind {
			continue
		}
		blueprints++
		problems := byBlueprint[object.GetName()]
		_, err = a.tryApply(string(text))
		if apierrors.IsInvalid(err) || err != nil && strings.Contains(err.Error(), "field not declared in schema") {
			if len(problems) == 0 {
				a.Errorf("%s: validate reports no problem, but the API server returns %v", object.GetName(), err)
			}
			continue
		}
		if err != nil {
			a.Fatal(err)
		}
	}
	for _, object := range objects {
		if object.GroupVersionKind() == blueprint.GroupVersionKind {
			a.checkCondition(object.GetName(), byBlueprint[object.GetName()])
		}
	}
	return blueprints
}

// checkCondition compares the Accepted condition with problems. It ignores Blueprints that do not exist.
func (a *api) checkCondition(name string, problems []string) {
	a.Helper()
	if _, err := a.get(blueprintVersion, "Blueprint", name); apierrors.IsNotFound(err) {
		return
	}
	status := "True"
	if len(problems) > 0 {
		status = "False"
	}
	object := a.wait(blueprintVersion, "Blueprint", name, is("Accepted", status))
	accepted := meta.FindStatusCondition(conditions(object), "Accepted")
	var got []string
	for line := range strings.Lines(accepted.Message) {
		line, _, _ = strings.Cut(line, "; the Blueprint will be checked again")
		got = append(got, strings.TrimSpace(line))
	}
	for _, problem := range problems {
		problem, _, _ = strings.Cut(problem, "; pass its CustomResourceDefinition")
		if !slices.Contains(got, problem) {
			a.Errorf("%s: validate reports %q, but the platform reports %q", name, problem, got)
		}
	}
	if len(problems) > 0 && len(got) != len(problems) {
		a.Errorf("%s: validate reports %q, but the platform reports %q", name, problems, got)
	}
}

// objects parses YAML documents and expands lists.
func (a *api) objects(text string) (all []*unstructured.Unstructured) {
	a.Helper()
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); err != nil {
			return all // end of the file, or invalid document
		}
		if !object.IsList() {
			all = append(all, object)
			continue
		}
		list, err := object.ToList()
		if err != nil {
			a.Fatal(err)
		}
		for _, item := range list.Items {
			all = append(all, &item)
		}
	}
}

func TestValidate_UsesTheTypesOfTheCluster(t *testing.T) {
	a := newAPI(t)
	crd := a.apply(strings.Replace(existingCRD, "STATUS", "", 1))
	text := strings.ReplaceAll(changed(websites, change{"group: GROUP", "group: other.GROUP"},
		change{"kind: Website", "kind: Shop"},
		change{"apiVersion: v1\n        kind: Service", "apiVersion: GROUP/v1\n        kind: Website"}), "GROUP", a.group)
	const known = "unknown field in "
	eventually(t, func() error {
		if got := validate(t, text, "-", "--kubeconfig", a.cluster.Kubeconfig()); !strings.Contains(got, known) {
			return errors.New(got)
		}
		return nil
	})
	if got := validate(t, text, "-"); !strings.Contains(got, "unknown kind Website in "+a.group+"/v1; pass its") {
		t.Errorf("without --kubeconfig: got %s", got)
	}
	now, err := a.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", crd.GetName())
	if err != nil || len(now.GetAnnotations()) != len(crd.GetAnnotations()) {
		t.Errorf("got CustomResourceDefinition %v, %v", now, err)
	}
}

func TestExitCodes(t *testing.T) {
	const blueprint = "internal/offline/testdata/render/blueprint.yaml"
	const instance = "internal/offline/testdata/render/instance.yaml"
	for name, test := range map[string]struct {
		args []string
		want int
	}{
		"accepted":            {[]string{"validate", "internal/offline/testdata/accepted"}, 0},
		"problems":            {[]string{"validate", "internal/offline/testdata/refused"}, 1},
		"missing file":        {[]string{"validate", "missing.yaml"}, 2},
		"empty file":          {[]string{"validate", os.DevNull}, 1},
		"no manifest":         {[]string{"validate", "doc.go"}, 1},
		"only an instance":    {[]string{"validate", instance}, 1},
		"no file":             {[]string{"validate"}, 2},
		"unknown flag":        {[]string{"validate", "--unknown", blueprint}, 2},
		"missing kubeconfig":  {[]string{"validate", "--kubeconfig", "missing", blueprint}, 2},
		"rendered":            {[]string{"render", blueprint, instance}, 0},
		"no instance":         {[]string{"render", blueprint, blueprint}, 2},
		"one file":            {[]string{"render", blueprint}, 2},
		"run: unknown flag":   {[]string{"run", "--unknown"}, 1},
		"unknown command":     {[]string{"serve"}, 2},
		"no command":          {nil, 0},
		"shell completion":    {[]string{"completion", "bash"}, 0},
		"completion of files": {[]string{"__complete", "validate", ""}, 0},
	} {
		out, err := exec.CommandContext(t.Context(), binary, test.args...).CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		got := 0
		if failed != nil {
			got = failed.ExitCode()
		}
		if got != test.want {
			t.Errorf("%s: got exit code %d, want %d: %s", name, got, test.want, out)
		}
	}
}

func TestValidate_ReportsIncompatibleChangesOfTheCluster(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	text := strings.ReplaceAll(changed(websites, change{"text: {type: string}", "text: {type: string, maxLength: 3}"}),
		"GROUP", a.group)
	got := validate(t, text, "-", "--kubeconfig", a.cluster.Kubeconfig())
	for _, want := range []string{"spec.type.schema", "existing instances could become invalid",
		`platform.example.com/allow-incompatible-schema: "2"`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s; want %q", got, want)
		}
	}
	a.apply(text)
	a.waitBlueprint("websites", is("Accepted", "False", "IncompatibleSchema"))
	if got := validate(t, text, "-"); got != "" {
		t.Errorf("without --kubeconfig: got %s", got)
	}
}
