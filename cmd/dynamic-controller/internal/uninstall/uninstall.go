package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

var (
	// ErrRunning is returned if a replica of the platform holds the Lease.
	ErrRunning = errors.New("the platform is running")
	// ErrIncomplete is returned if objects still exist after their deletion was requested, for example because of
	// finalizers of other controllers.
	ErrIncomplete = errors.New("the uninstallation is incomplete")
)

// Options configures an uninstallation. All names are those with which the platform runs.
type Options struct {
	// Namespace is the platform's own namespace.
	Namespace string
	// Namespaces lists the namespaces to which the platform is limited. An empty list means no limit.
	Namespaces []string
	// LeaseNamespace and LeaseName identify the Lease of the replicas. If LeaseName is empty, the platform runs without
	// leader election, and Run does not check whether a replica is running. Otherwise, Run holds the Lease.
	LeaseNamespace, LeaseName string
	// LeaseDuration, RenewDeadline and RetryPeriod have the same meaning as in [replica.Options].
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// WebhookName is the name of the ValidatingWebhookConfiguration and of the Secret of the webhook.
	WebhookName string
	// DeleteInstances deletes the types that the platform created, with their instances. By default, types, instances and
	// children are kept.
	DeleteInstances bool
	// Apply makes the changes. By default, Run only prints them.
	Apply bool
	// Timeout is the maximum time to wait for the deletion of the instances of a type, of all Blueprints, or of a
	// CustomResourceDefinition. It restarts when the number of objects decreases.
	Timeout time.Duration
	// Out receives one line for each step.
	Out io.Writer
}

type uninstaller struct {
	Options
	dynamic  dynamic.Interface
	metadata metadata.Interface
	crds     apiextensionsclient.CustomResourceDefinitionInterface
	leases   coordinationclient.LeaseInterface

	types   []typeInfo
	changes int // number of objects that have been changed, or would be
}

// Run uninstalls the platform, or prints what it would do.
func Run(ctx context.Context, cfg *rest.Config, options Options) error {
	client, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create clients: %w", err)
	}
	u := &uninstaller{Options: options, leases: client.Leases(options.LeaseNamespace)}
	if err := u.connect(cfg); err != nil {
		return err
	}
	if err := u.whileStopped(ctx, cfg, u.removeAll); err != nil {
		return err
	}
	if err := u.deleteLease(ctx); err != nil {
		return err
	}
	u.summarize()
	return nil
}

// connect creates the clients that make the changes.
func (u *uninstaller) connect(cfg *rest.Config) error {
	var err1, err2, err3 error
	var crds clientset.Interface
	u.dynamic, err1 = dynamic.NewForConfig(cfg)
	u.metadata, err2 = metadata.NewForConfig(cfg)
	crds, err3 = clientset.NewForConfig(cfg)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("create clients: %w", err)
	}
	u.crds = crds.ApiextensionsV1().CustomResourceDefinitions()
	return nil
}

// removeAll performs all steps except for the deletion of the Lease.
func (u *uninstaller) removeAll(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		u.checkSecret, u.findTypes, u.deleteWebhook, u.cleanUpInstances, u.deleteBlueprints, u.cleanUpTypes, u.deleteManifest,
		u.deleteRevisions, u.deleteSecret,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// report prints a step. done and action are forms of the same verb, such as "deleted" and "delete".
func (u *uninstaller) report(done, action string, n int, format string, args ...any) {
	if n == 0 {
		return
	}
	u.changes += n
	verb := done
	if !u.Apply {
		verb = "would " + action
	}
	fmt.Fprintf(u.Out, "%s %s\n", verb, fmt.Sprintf(format, args...))
}

func (u *uninstaller) summarize() {
	switch {
	case u.changes == 0:
		fmt.Fprintln(u.Out, "nothing to remove")
	case !u.Apply:
		fmt.Fprintln(u.Out, "nothing was changed: add --yes to make these changes")
	default:
		fmt.Fprintln(u.Out, "done: the Deployment, the ServiceAccount and the roles of the platform remain; "+
			"delete them with the tool that installed them")
	}
}

// count returns n followed by the noun, which is in the plural unless n is 1.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
