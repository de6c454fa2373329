package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

const webhookName = "dynamic-controller-webhook"

// uninstallCommand returns the command line for the Lease and the namespace of the test's replicas.
func (a *api) uninstallCommand(kubeconfig string, args ...string) *exec.Cmd {
	return exec.Command(binary, append([]string{"uninstall", "--kubeconfig", kubeconfig, "--namespace", platformNamespace,
		"--leader-elect-resource-name", leaseOf(a.T), "--leader-elect-resource-namespace", metav1.NamespaceDefault,
		"--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "2s", "--leader-elect-retry-period", "500ms"},
		args...)...)
}

// uninstall runs the command, and fails the test unless it exits with the given code and prints the texts.
func (a *api) uninstall(code int, args []string, texts ...string) {
	a.Helper()
	cmd := a.uninstallCommand(a.cluster.Kubeconfig(), args...)
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		a.Fatalf("uninstall %v: exit code %d, want %d: %s", args, got, code, out)
	}
	for _, text := range a.expandGroup(texts) {
		if !strings.Contains(string(out), text) {
			a.Errorf("uninstall %v: the output does not contain %q: %s", args, text, out)
		}
	}
}

// uninstallWithCrashes runs the command again and again. Each run is killed after its first write, before it receives
// the response, until there is nothing left to write. It returns the kinds of the writes.
func (a *api) uninstallWithCrashes(args ...string) (written []string) {
	a.Helper()
	const mostRuns = 100
	var current *process
	trap := apiproxy.NewTrap(func() { endNow(current) })
	kubeconfig, _ := a.proxied(trap.Wrap)
	for range mostRuns {
		var out bytes.Buffer
		cmd := a.uninstallCommand(kubeconfig, append(args, "--yes")...)
		cmd.Stdout = &out
		trap.Set(isUninstallWrite, 0, true) // blocks no request before current is set
		var err error
		if current, err = begin(a.T, cmd); err != nil {
			a.Fatal(err)
		}
		trap.Set(isUninstallWrite, 1, true)
		<-current.exited
		caught := trap.Caught()
		if caught == nil {
			if code := cmd.ProcessState.ExitCode(); code != 0 {
				a.Fatalf("exit code %d: %s%s", code, out.String(), current.output())
			}
			return written
		}
		written = append(written, caught.Kind())
	}
	a.Fatalf("not uninstalled after %d runs, with the writes %v", mostRuns, written)
	return nil
}

// isUninstallWrite reports whether a request changes an object, or deletes the Lease.
func isUninstallWrite(c apiproxy.Call) bool {
	return isWrite(c) || c.Resource == "leases" && c.Verb == "delete"
}

// uninstallUntilBlueprint runs the command, and kills it after the first write of a Blueprint.
func (a *api) uninstallUntilBlueprint(args ...string) {
	a.Helper()
	var current *process
	trap := apiproxy.NewTrap(func() { endNow(current) })
	kubeconfig, _ := a.proxied(trap.Wrap)
	trap.Set(isWrite, 0, true)
	var err error
	if current, err = begin(a.T, a.uninstallCommand(kubeconfig, append(args, "--yes")...)); err != nil {
		a.Fatal(err)
	}
	trap.Set(func(c apiproxy.Call) bool {
		return isWrite(c) && c.Resource == blueprint.GroupVersionResource.Resource
	}, 1, true)
	<-current.exited
	if trap.Caught() == nil {
		a.Fatalf("no Blueprint was written: %s", current.output())
	}
}

// uninstallWithoutLease runs the command, which waits for an instance, and checks that it ends when another process
// takes the Lease.
func (a *api) uninstallWithoutLease() {
	a.Helper()
	p, err := begin(a.T, a.uninstallCommand(a.cluster.Kubeconfig(), "--yes", "--delete-instances"))
	if err != nil {
		a.Fatal(err)
	}
	leases := a.kube.CoordinationV1().Leases(metav1.NamespaceDefault)
	eventually(a.T, func() error {
		lease, err := leases.Get(a.Context(), leaseOf(a.T), metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), "dynamic-controller-uninstall_") {
			err = errors.New("the command does not hold the Lease")
		}
		return err
	})
	_, err = leases.Patch(a.Context(), leaseOf(a.T), types.MergePatchType, []byte(`{"spec":{"holderIdentity":"other"}}`),
		metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}
	<-p.exited
	if p.cmd.ProcessState.ExitCode() != 2 || !strings.Contains(p.output(), "lost the Lease") {
		a.Errorf("got exit code %d and %s", p.cmd.ProcessState.ExitCode(), p.output())
	}
}

// addWebhook adds a webhook without a server, which therefore blocks all changes to Blueprints.
func (a *api) addWebhook() {
	a.Helper()
	a.Cleanup(func() {
		ctx := context.WithoutCancel(a.Context())
		webhooks := a.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		_ = webhooks.Delete(ctx, webhookName, metav1.DeleteOptions{})
		_ = a.kube.CoreV1().Secrets(platformNamespace).Delete(ctx, webhookName, metav1.DeleteOptions{})
	})
	_, err := a.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(a.Context(),
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: webhookName},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name:         "blueprints.platform.example.com",
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
					Rule: admissionregistrationv1.Rule{
						APIGroups: []string{"platform.example.com"}, APIVersions: []string{"*"}, Resources: []string{"*"},
					},
				}},
				FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
				SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To(int32(1)),
			}},
		}, metav1.CreateOptions{})
	if err == nil {
		_, err = a.kube.CoreV1().Secrets(platformNamespace).Create(a.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: webhookName}}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) { // the transport can repeat a request
		a.Fatal(err)
	}
	eventually(a.T, func() error { // until the API server has loaded the configuration
		_, err := a.dynamic.Resource(blueprint.GroupVersionResource).Patch(a.Context(), "websites."+a.group,
			types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("Blueprints can still be changed")
		}
		return nil
	})
}

// hasFinalizer checks that an object has the given finalizer and is not being deleted.
func hasFinalizer(finalizer string) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		if object.GetDeletionTimestamp() != nil || !slices.Contains(object.GetFinalizers(), finalizer) {
			return errors.New("the object is being deleted, or does not have the finalizer " + finalizer)
		}
		return nil
	}
}

// A replica that starts after an interrupted uninstallation deletes nothing, although a Blueprint has the deletion
// policy Delete.
func TestUninstall_KeepsInstancesIfPlatformIsStartedAgain(t *testing.T) {
	u, p := prepareUninstall(t)
	before := u.identities()
	p.stop(syscall.SIGTERM)
	u.uninstallUntilBlueprint()
	p = startServing(t, u.cluster.Kubeconfig(), shortLease...)
	u.wait("platform.example.com/v1alpha1", "Blueprint", "depots."+u.group, hasFinalizer("platform.example.com/blueprint"))
	u.wait("platform.example.com/v1alpha1", "Blueprint", "websites."+u.group,
		hasFinalizer("platform.example.com/blueprint"))
	u.wait("GROUP/v1", "Depot", "d", hasFinalizer("platform.example.com/children"))
	u.checkKept(before, "restart")
	p.stop(syscall.SIGTERM)
	u.uninstall(0, []string{"--yes"}, "deleted 2 Blueprints")
	u.checkKept(before, "uninstall")
	u.checkUninstalled()
}

// checkUninstalled fails the test if an object of the platform remains.
func (a *api) checkUninstalled() {
	a.Helper()
	ctx, get := a.Context(), metav1.GetOptions{}
	_, err1 := a.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, webhookName, get)
	_, err2 := a.kube.CoreV1().Secrets(platformNamespace).Get(ctx, webhookName, get)
	_, err3 := a.kube.CoordinationV1().Leases(metav1.NamespaceDefault).Get(ctx, leaseOf(a.T), get)
	_, err4 := a.get(typeVersion, typeKind, manifestName)
	for what, err := range map[string]error{
		"configuration": err1, "Secret": err2, "Lease": err3, "CustomResourceDefinition": err4,
	} {
		if !apierrors.IsNotFound(err) {
			a.Errorf("the %s remains: %v", what, err)
		}
	}
	revisions, err := a.kube.AppsV1().ControllerRevisions(platformNamespace).List(a.Context(), metav1.ListOptions{})
	if err != nil || len(revisions.Items) > 0 {
		a.Errorf("got the revisions %v, %v", revisions.Items, err)
	}
}

// isReleased checks that an instance has only the given finalizers, and no inventory.
func isReleased(finalizers ...string) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		if !slices.Equal(object.GetFinalizers(), finalizers) ||
			object.GetAnnotations()["platform.example.com/inventory"] != "" {
			return errors.New("the instance is not released: " + strings.Join(object.GetFinalizers(), ","))
		}
		return nil
	}
}

// held is an instance with a finalizer of another controller.
const held = "{apiVersion: GROUP/v1, kind: Depot, metadata: {name: held, finalizers: [example.com/hold]}, " +
	"spec: {text: a}}"

// prepareUninstall starts a platform with instances of two types.
func prepareUninstall(t *testing.T) (*upgraded, *process) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	u := &upgraded{api: a, far: a.addNamespace(a.namespace + "-far")}
	a.apply(websites)
	a.apply(strings.ReplaceAll(depots, "FAR", u.far))
	a.apply(flowers)
	a.apply(depot)
	a.apply(held)
	u.waitReady()
	a.wait("GROUP/v1", "Depot", "held", is("Ready", "True"))
	return u, p
}

func TestUninstall_KeepsInstancesAndChildren(t *testing.T) {
	u, p := prepareUninstall(t)
	u.uninstall(0, nil, "cluster: https://", "the platform may be running", "would delete 2 Blueprints",
		"nothing was changed")
	u.uninstall(1, []string{"--yes"}, "the platform is running", "scale the Deployment to 0")
	u.uninstall(2, []string{"--yes", "--leader-elect-resource-name", "other"}, "the Lease default/other does not exist")
	p.stop(syscall.SIGTERM)
	u.addWebhook()
	u.apply("{apiVersion: v1, kind: Secret, metadata: {name: other, namespace: " + platformNamespace +
		"}, stringData: {password: a}}")
	u.uninstall(2, []string{"--yes", "--webhook-name", "other"}, "/other belongs to another program")
	before := u.identities()
	u.uninstall(0, nil, "would delete the ValidatingWebhookConfiguration "+webhookName,
		"would release 2 instances of depots.GROUP",
		"1 instance of depots.GROUP with finalizers of other controllers, which are kept, for example "+u.namespace+
			"/held; blocked by finalizer example.com/hold", "would delete 2 Blueprints", "nothing was changed")
	for name, id := range u.identities() {
		if id != before[name] {
			t.Errorf("the dry run has changed %s", name)
		}
	}
	written := u.uninstallWithCrashes()
	t.Logf("killed after the writes %v", written)
	if len(written) < 12 {
		t.Errorf("got only %d writes", len(written))
	}
	u.checkKept(before, "uninstall")
	u.checkUninstalled()
	u.wait("GROUP/v1", "Website", "flowers", isReleased())
	u.wait("GROUP/v1", "Depot", "d", isReleased())
	u.wait("GROUP/v1", "Depot", "held", isReleased("example.com/hold"))
	u.uninstall(0, []string{"--yes"}, "nothing to remove")

	// The instances can be deleted. Kubernetes deletes children with an owner reference.
	u.delete("GROUP/v1", "Depot", "d")
	u.waitGone("GROUP/v1", "Depot", "d")
	u.waitGone("v1", "Secret", "d-near")
	u.wait("v1", "ConfigMap", u.far+"/d-far", exists)

	// The types are reserved for Blueprints with the same names.
	page := u.wait("v1", "ConfigMap", "flowers-page", exists)
	startServing(t, u.cluster.Kubeconfig())
	u.apply(websites)
	u.apply(changed(flowers, change{"roses", "tulips"}))
	u.wait("v1", "ConfigMap", "flowers-page", all(has("tulips", "data", "text"), uidIs(string(page.GetUID()))))
	u.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

// addOrphanedType adds a type that was created for a Blueprint that does not exist here.
func (a *api) addOrphanedType() (name string) {
	a.Helper()
	a.apply(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
metadata: {name: orphans.GROUP, annotations: {platform.example.com/blueprint-uid: other}},
spec: {group: GROUP, scope: Namespaced, names: {plural: orphans, kind: Orphan}, versions: [{name: v1, served: true,
storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)
	return "orphans." + a.group
}

func TestUninstall_DeletesInstances(t *testing.T) {
	u, p := prepareUninstall(t)
	p.stop(syscall.SIGTERM)
	u.addWebhook()
	orphan := u.addOrphanedType()
	u.uninstallWithoutLease()
	// The timeout restarts with each instance that the garbage collector deletes.
	u.uninstall(1, []string{"--yes", "--delete-instances", "--timeout", "10s"}, "the uninstallation is incomplete",
		"1 of the instances of depots.GROUP are left, for example "+u.namespace+"/held; blocked by finalizer "+
			"example.com/hold")
	u.apply(changed(held, change{"example.com/hold", ""}))
	t.Logf("killed after the writes %v", u.uninstallWithCrashes("--delete-instances"))
	u.checkUninstalled()
	u.wait(typeVersion, typeKind, orphan, exists)
	for _, name := range []string{"websites.", "depots."} {
		u.waitGone(typeVersion, typeKind, name+u.group)
	}
	for _, name := range []string{"flowers-page", "flowers-route"} {
		u.waitGone("v1", "ConfigMap", name)
	}
	u.waitGone("v1", "Service", "flowers")
	u.waitGone("v1", "Secret", "d-near")
	u.wait("v1", "ConfigMap", u.far+"/d-far", exists)
}
