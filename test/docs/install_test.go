package docs

import (
	"slices"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/test/cluster"
)

// The commands for Helm in docs/install.md and docs/operations.md must install, upgrade and remove the platform, and must
// take over an installation that was made without Helm.
func TestInstall_CommandsForHelmWork(t *testing.T) {
	own, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), WithControllers: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin := newUser(t, root, own.Kubeconfig())
	install, operations := readDocument(t, "docs/install.md"), readDocument(t, "docs/operations.md")
	release := install.blockWith(t, "helm install")
	admin.run(release[0]) // the namespace
	before := admin.installed()

	t.Run("install and upgrade", func(t *testing.T) {
		admin := newUser(t, root, own.Kubeconfig())
		admin.startFakeControllers(platformNamespace)
		for _, c := range slices.Concat(release, install.blockWith(t, "helm upgrade")) {
			admin.run(c)
		}
		runPlatform(t, own.Kubeconfig())
	})
	for _, c := range operations.blockWith(t, "kubectl scale deployment dynamic-controller") {
		admin.run(c)
	}
	admin.run(operations.blockWith(t, "helm uninstall")[0])
	if left := admin.installed(); !slices.Equal(before, left) {
		t.Errorf("got the objects %q after the removal, want %q", left, before)
	}

	admin.run(command{text: applyKustomization})
	takeOver := install.blockWith(t, "--take-ownership")[0]
	text := strings.Replace(takeOver.text, "--take-ownership", "", 1)
	const refusal = "invalid ownership metadata"
	if _, err := admin.sh(text); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("%s: got the error %v, want %q", text, err, refusal)
	}
	admin.run(takeOver)
}

// blockWith returns the first code block that contains a text.
func (d document) blockWith(t *testing.T, text string) []command {
	t.Helper()
	for _, block := range d.blocks {
		if slices.ContainsFunc(block, func(c command) bool { return strings.Contains(c.text, text) }) {
			return block
		}
	}
	t.Fatalf("%s has no code block with %q", d.path, text)
	return nil
}

// installed returns the names of the objects outside the platform's namespace that an installation creates.
func (u *user) installed() []string {
	u.Helper()
	out, err := u.sh("kubectl get -o name crds,clusterroles,clusterrolebindings,validatingwebhookconfigurations && " +
		"kubectl get -o name deployments,roles,rolebindings,serviceaccounts,poddisruptionbudgets,leases -n " + platformNamespace)
	if err != nil {
		u.Fatal(err)
	}
	return slices.DeleteFunc(strings.Fields(out), func(name string) bool { return name == "serviceaccount/default" })
}
