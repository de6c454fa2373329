package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

// The commands for Helm in docs/install.md and docs/operations.md must install, upgrade and remove the platform. They
// must also take over an installation that was made without Helm.
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

	ok := t.Run("install and upgrade", func(t *testing.T) {
		admin := newUser(t, root, own.Kubeconfig())
		admin.startFakeControllers(platformNamespace)
		for _, c := range slices.Concat(release, install.blockWith(t, "helm upgrade")) {
			admin.run(c)
		}
		const want = "registry.example.com/platform/dynamic-controller:v0.2.0"
		if image := admin.deployed("{.spec.template.spec.containers[0].image}"); image != want {
			t.Errorf("got the image %s after the upgrade, want %s", image, want)
		}
		runPlatform(t, own.Kubeconfig())
	})
	if !ok {
		return
	}
	for _, c := range operations.blockWith(t, "kubectl scale deployment dynamic-controller") {
		admin.run(c)
	}
	admin.run(operations.blockWith(t, "helm uninstall")[0])
	again := operations.blockWith(t, "kubectl delete --ignore-not-found clusterrole")[0]
	testkit.Eventually(t, timeout, func() error {
		admin.run(again)
		if left := admin.installed(); !slices.Equal(before, left) {
			return fmt.Errorf("got the objects %q after the removal, want %q", left, before)
		}
		return nil
	})

	admin.run(command{text: applyKustomization})
	takeOver := install.blockWith(t, "--take-ownership")[0]
	text := strings.Replace(takeOver.text, "--take-ownership --force-conflicts", "", 1)
	const refusal = "invalid ownership metadata"
	if _, err := admin.sh(text); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("%s: got the error %v, want %q", text, err, refusal)
	}
	admin.run(takeOver)
	args := admin.deployed("{.spec.template.spec.containers[0].args}")
	if !strings.Contains(args, "--allow-platform-identity") {
		t.Errorf("got the arguments %s after the take-over", args)
	}
	if out, err := admin.sh("helm list -q -n " + platformNamespace); err != nil || out != "dynamic-controller\n" {
		t.Errorf("got the releases %q and the error %v after the take-over", out, err)
	}

	admin.startFakeControllers(platformNamespace)
	for _, c := range install.blockWith(t, "serverFence.action=Audit") {
		admin.run(c)
	}
	admin.run(operations.blockWith(t, "helm uninstall")[0])
	admin.fenceIsKept("Deny")
	admin.run(again)
	admin.run(command{text: release[1].text + " --set serverFence.enabled=true,serverFence.action=Audit"})
	admin.fenceIsKept("Audit")
}

// fenceIsKept fails the test if the policy of the fence on the server is missing, or has another action.
func (u *user) fenceIsKept(action string) {
	u.Helper()
	out, err := u.sh("kubectl get validatingadmissionpolicy dynamic-controller-fence -o name && " +
		"kubectl get validatingadmissionpolicybinding dynamic-controller-fence -o 'jsonpath={.spec.validationActions[0]}'")
	if err != nil || !strings.HasSuffix(out, "\n"+action) {
		u.Errorf("got %q and the error %v, want the policy with the action %s", out, err, action)
	}
}

// deployed returns a field of the platform's Deployment.
func (u *user) deployed(path string) string {
	u.Helper()
	out, err := u.sh("kubectl get deployment dynamic-controller -n " + platformNamespace + " -o 'jsonpath=" + path + "'")
	if err != nil {
		u.Fatal(err)
	}
	return out
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

// installed returns the names of the objects that an installation can create, except for its namespace.
func (u *user) installed() []string {
	u.Helper()
	const clusterScoped = "crds,clusterroles,clusterrolebindings,validatingwebhookconfigurations"
	const namespaced = "deployments,services,secrets,controllerrevisions,roles,rolebindings,serviceaccounts," +
		"poddisruptionbudgets,leases"
	out, err := u.sh("kubectl get -o name " + clusterScoped + " && kubectl get -o name " + namespaced + " -n " +
		platformNamespace)
	if err != nil {
		u.Fatal(err)
	}
	return slices.DeleteFunc(strings.Fields(out), func(name string) bool { return name == "serviceaccount/default" })
}
