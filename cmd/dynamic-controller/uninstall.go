package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/uninstall"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// uninstallOptions contains the flags of the uninstall command. Most of them have the same names as the flags of run.
type uninstallOptions struct {
	uninstall.Options
	kubeconfig, context string
	leaderElect         bool
}

func newUninstallCommand() *cobra.Command {
	o := &uninstallOptions{}
	cmd := &cobra.Command{
		Use:   "uninstall --namespace NAMESPACE",
		Short: "Remove finalizers, Blueprints and other objects of the platform from the cluster",
		Long: `Remove the platform from the cluster, except for its Deployment, its ServiceAccount and its roles.
Without --yes, the command only prints what it would do.

The platform must be stopped: scale the Deployment to 0 first. The command refuses to run while a replica holds the
Lease. It holds the Lease while it makes changes, so that no replica can lead, and stops if it loses the Lease. The
flags must have the same values as those of run.

In this order, the command removes the ValidatingWebhookConfiguration, the platform's finalizer and inventory from
instances, the Blueprints, the CustomResourceDefinition of Blueprints, the ControllerRevisions with accepted specs, the
Secret of the webhook, and the Lease. If it is interrupted, run it again.

Types, instances and their children are kept. Children with an owner reference are deleted when their instance is
deleted. Other children remain. With --delete-instances, the command deletes the types that the platform created for
its Blueprints, with their instances. Kubernetes then deletes the children with owner references, in any order. To
delete all children, and in the right order, set spec.deletionPolicy of the Blueprints to Delete and delete the
Blueprints while the platform is still running.

Finalizers of other controllers are never removed.

The exit code is 0 if the command succeeds, 1 if the platform is running or if objects remain because of finalizers of
other controllers, and 2 for other errors.`,
		Example: `  # Print what would be removed
  kubectl scale deployment dynamic-controller -n dynamic-controller-system --replicas=0
  dynamic-controller uninstall --namespace dynamic-controller-system

  # Remove the platform, but keep the types, the instances and their children
  dynamic-controller uninstall --namespace dynamic-controller-system --yes

  # Delete the types, the instances and their children as well
  dynamic-controller uninstall --namespace dynamic-controller-system --delete-instances --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			cfg, context, err := o.config()
			if err != nil {
				return err
			}
			o.Out = printable{cmd.OutOrStdout()}
			fmt.Fprintf(o.Out, "cluster: %s, context: %s\n", cfg.Host, cmp.Or(context, "none"))
			if _, err := checkConnection(cmd.Context(), logr.Discard(), cfg, connectTimeout); err != nil {
				return err
			}
			return uninstall.Run(cmd.Context(), cfg, o.Options)
		},
	}
	const defaultTimeout = 2 * time.Minute
	f := cmd.Flags()
	f.BoolVar(&o.Apply, "yes", false, "make the changes. Without this flag, they are only printed")
	f.BoolVar(&o.DeleteInstances, "delete-instances", false, "delete the types that the platform created, and their "+
		"instances. With --"+flagNamespaces+", the types are kept, and instances are deleted only in these namespaces")
	f.DurationVar(&o.Timeout, "timeout", defaultTimeout, "maximum time to wait while the number of instances, Blueprints "+
		"or CustomResourceDefinitions that are being deleted does not decrease")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig `FILE` (default: $KUBECONFIG, else ~/.kube/config)")
	f.StringVar(&o.context, "context", "", "the `NAME` of the kubeconfig context (default: the current context)")
	f.StringVar(&o.Namespace, flagNamespace, "", "the `NAMESPACE` of the platform (required)")
	f.StringSliceVar(&o.Namespaces, flagNamespaces, nil, "the `NAMESPACES`, separated by commas, to which instances are "+
		"limited (default: all namespaces)")
	f.BoolVar(&o.leaderElect, flagLeaderElect, true, "hold the Lease, so that no replica can lead. If false, make sure "+
		"that no replica is running")
	defaults := replica.DefaultOptions()
	f.DurationVar(&o.LeaseDuration, flagLeaseDuration, defaults.LeaseDuration,
		"time, in whole seconds, for which a Lease that was not released is still respected")
	f.DurationVar(&o.RenewDeadline, flagRenewDeadline, defaults.RenewDeadline,
		"time for which the command retries a failing renewal of the Lease before it stops")
	f.DurationVar(&o.RetryPeriod, flagRetryPeriod, defaults.RetryPeriod,
		"interval between attempts to acquire or renew the Lease")
	f.StringVar(&o.LeaseName, flagLeaseName, "dynamic-controller", "the `NAME` of the Lease")
	f.StringVar(&o.LeaseNamespace, flagLeaseNamespace, "",
		"the `NAMESPACE` of the Lease (default: the namespace of the platform)")
	f.StringVar(&o.WebhookName, flagWebhookName, "dynamic-controller-webhook", "the `NAME` of the webhook's Secret and "+
		"ValidatingWebhookConfiguration")
	return cmd
}

// complete validates the flags and sets defaults that depend on other flags.
func (o *uninstallOptions) complete() error {
	switch {
	case len(validation.IsDNS1123Label(o.Namespace)) > 0:
		return fmt.Errorf("--%s: must be the namespace of the platform, such as dynamic-controller-system, got %q",
			flagNamespace, o.Namespace)
	case o.Namespaces != nil && !areNamespaces(o.Namespaces):
		return fmt.Errorf("--%s: must be distinct DNS-1123 labels, such as shop,team-a, got %q", flagNamespaces,
			strings.Join(o.Namespaces, ","))
	case o.leaderElect && o.LeaseName == "":
		return fmt.Errorf("--%s: must not be empty", flagLeaseName)
	case o.WebhookName == "":
		return fmt.Errorf("--%s: must not be empty", flagWebhookName)
	case o.LeaseDuration <= 0 || o.RenewDeadline <= 0 || o.RetryPeriod <= 0:
		return fmt.Errorf("--%s, --%s, --%s: must be positive", flagLeaseDuration, flagRenewDeadline, flagRetryPeriod)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout: must be positive, got %s", o.Timeout)
	}
	if o.LeaseNamespace == "" {
		o.LeaseNamespace = o.Namespace
	}
	if !o.leaderElect {
		o.LeaseName = ""
	}
	return nil
}

// config returns the client configuration, and the name of the kubeconfig context.
func (o *uninstallOptions) config() (*rest.Config, string, error) {
	client := clientOptions{kubeconfig: o.kubeconfig, overrides: clientcmd.ConfigOverrides{CurrentContext: o.context}}
	cfg, _, err := client.config()
	if err != nil {
		return nil, "", err
	}
	cfg.QPS = -1 // requests are sent one at a time
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	file, err := rules.Load()
	if err != nil {
		return nil, "", fmt.Errorf("load the kubeconfig: %w", err)
	}
	return cfg, cmp.Or(o.context, file.CurrentContext), nil
}

// printable replaces characters in the output that a terminal could interpret. Names of objects and finalizers are
// written by users.
type printable struct{ io.Writer }

func (p printable) Write(data []byte) (int, error) {
	_, err := io.WriteString(p.Writer, explain.Printable(string(data)))
	return len(data), err
}
