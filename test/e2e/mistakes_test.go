package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/test/e2e/internal/tcpproxy"
	"github.com/dynamic-controller/engine/test/webhookservice"
)

var blueprints = schema.GroupVersionResource{
	Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints",
}

// treeBlueprint is valid only if FIELD is text.
const treeBlueprint = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: NAME.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: KIND
    schema: {properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: leaf
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}"}
        data: {text: "${self.spec.FIELD}", change: "CHANGE"}
`

const (
	wrongPrefix = "wrong-"
	// problem is the message about an invalid Blueprint.
	problem = `spec.resources[0].template.data.text: ${self.spec.txt}: unknown field "txt"`
	refused = `admission webhook "blueprints.platform.example.com" denied the request: ` + problem
)

// mistakes counts the changes to Blueprints.
type mistakes struct{ changes, refused, stored int }

// installWebhook makes the API server call the webhook of the replicas until the test ends.
func (f *fleet) installWebhook(system string) {
	f.Helper()
	service, err := webhookservice.Listen(f.webhookAddresses)
	f.noError(err)
	f.Cleanup(service.Close)
	f.webhook, err = tcpproxy.Listen(fmt.Sprint("127.0.0.1:", service.Port()))
	f.noError(err)
	f.Cleanup(f.webhook.Close)
	_, port, _ := strings.Cut(f.webhook.Addr(), ":")
	number, err := strconv.ParseInt(port, 10, 32)
	f.noError(err)
	const timeout = 1 // Shorter than the timeout of the test's requests.
	f.noError(webhookservice.Install(f.Context(), f.clients, system, f.namespace, int32(number), timeout))
	f.Cleanup(func() {
		if err := webhookservice.Uninstall(context.WithoutCancel(f.Context()), f.clients, system, f.namespace); err != nil {
			f.Error(err)
		}
	})
}

// webhookFaults affect the connections from the API server to the webhook.
var webhookFaults = []fault{
	{name: "webhook stalled", inject: (*fleet).stallWebhook},
	{name: "webhook unreachable", inject: (*fleet).resetWebhook},
}

func (f *fleet) stallWebhook(_ target, d time.Duration) {
	f.webhook.Stall()
	f.wait(d)
	f.webhook.Heal()
}

func (f *fleet) resetWebhook(_ target, d time.Duration) {
	f.webhook.Reset()
	f.wait(d)
	f.webhook.Heal()
}

var webhookAddress = regexp.MustCompile(`"Listening".*"endpoint":"webhook-bind-address","address":"([^"]+)"`)

// webhookAddresses returns the last address of the webhook of each replica.
func (f *fleet) webhookAddresses() (addresses []string) {
	for _, m := range f.members {
		data, _ := os.ReadFile(filepath.Join(f.dir, m.name+".log")) // It does not exist before the replica is started.
		if found := webhookAddress.FindAllSubmatch(data, -1); len(found) > 0 {
			addresses = append(addresses, string(found[len(found)-1][1]))
		}
	}
	return addresses
}

// tree returns a Blueprint.
func (g *gardens) tree(name, kind, field string) string {
	return strings.NewReplacer("NAME", name, "KIND", kind, "FIELD", field, "CHANGE", fmt.Sprint(g.mistakes.changes),
		"GROUP", g.group).Replace(treeBlueprint)
}

// applyTrees changes a valid Blueprint. The change must never be refused.
func (g *gardens) applyTrees() {
	g.mistakes.changes++
	g.retry(func(ctx context.Context) error {
		_, err := g.apply(ctx, g.tree("trees", "Tree", "text"))
		if isAnswer(err) {
			g.Errorf("a Blueprint was refused: %v", err)
			return nil
		}
		return err
	})
}

// applyWrong creates an invalid Blueprint. The webhook refuses it, or it is stored and must then be rejected.
func (g *gardens) applyWrong() {
	g.mistakes.changes++
	g.retry(func(ctx context.Context) error {
		_, err := g.apply(ctx, g.tree(fmt.Sprint(wrongPrefix, g.mistakes.changes), "Wrong", "txt"))
		switch {
		case err == nil:
			g.mistakes.stored++
		case isRefusal(err):
			g.mistakes.refused++
		case isAnswer(err):
			g.Errorf("an invalid Blueprint was refused with another message: %v", err)
		default:
			return err
		}
		return nil
	})
}

// isAnswer reports whether an error concerns the request or the webhook, as opposed to an unavailable API server.
func isAnswer(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		err != nil && strings.Contains(err.Error(), "webhook")
}

func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) && strings.HasPrefix(err.Error(), refused)
}

// checkBlueprints returns an error unless the platform has accepted the trees, and rejected the invalid Blueprints that
// were stored.
func (g *gardens) checkBlueprints() error {
	list, err := g.client.Resource(blueprints).List(g.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range list.Items {
		name, group, _ := strings.Cut(object.GetName(), ".")
		switch {
		case group != g.group:
		case strings.HasPrefix(name, wrongPrefix):
			errs = append(errs, isAccepted(&object, "False", problem))
		default:
			errs = append(errs, isAccepted(&object, "True", ""))
		}
	}
	return errors.Join(errs...)
}

// isAccepted returns an error unless the condition Accepted has been observed at the newest generation, and has the
// status and a message that begins with the text.
func isAccepted(object *unstructured.Unstructured, status, text string) error {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, each := range conditions {
		c, _ := each.(map[string]any)
		message, _ := c["message"].(string)
		if c["type"] == "Accepted" && c["observedGeneration"] == object.GetGeneration() && c["status"] == status &&
			strings.HasPrefix(message, text) {
			return nil
		}
	}
	return fmt.Errorf("%s has the conditions %v, want Accepted: %s", object.GetName(), conditions, status)
}

// settleBlueprints deletes the invalid Blueprints, and waits until the webhook refuses another one.
func (g *gardens) settleBlueprints() {
	g.Helper()
	g.Logf("of %d changes to Blueprints, %d were refused and %d invalid ones were stored", g.mistakes.changes,
		g.mistakes.refused, g.mistakes.stored)
	list, err := g.client.Resource(blueprints).List(g.Context(), metav1.ListOptions{})
	g.noError(err)
	for _, object := range list.Items {
		if name := object.GetName(); strings.HasPrefix(name, wrongPrefix) && strings.HasSuffix(name, "."+g.group) {
			g.noError(g.client.Resource(blueprints).Delete(g.Context(), name, metav1.DeleteOptions{}))
		}
	}
	g.eventually("the webhook refuses an invalid Blueprint", func() error {
		object, err := parse(g.tree("wrong", "Wrong", "txt"))
		g.noError(err)
		_, err = g.client.Resource(blueprints).Create(g.Context(), object,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !isRefusal(err) {
			return errors.Join(errors.New("want: "+refused), err)
		}
		return nil
	})
}
