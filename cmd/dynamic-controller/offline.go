package main

import (
	"context"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/offline"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/waiting"
)

// offlineOptions contains the common flags of validate and render.
type offlineOptions struct {
	kubeconfig, context string
	offline             offline.Options
}

func (o *offlineOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"the kubeconfig `FILE` of a cluster. Its types are used in addition to those in the files")
	f.StringVar(&o.context, "context", "",
		"the `NAME` of the kubeconfig context of this cluster (default: the current context, if --kubeconfig is set)")
	f.BoolVar(&o.offline.AllowUnknownKinds, "allow-unknown-kinds", false,
		"accept templates of unknown kinds without checking them")
}

// run calls f with the options. They include the types of a cluster if one was specified.
func (o *offlineOptions) run(cmd *cobra.Command, f func(context.Context, offline.Options) error) error {
	ctx := cmd.Context()
	o.offline.Stdin = cmd.InOrStdin()
	if o.kubeconfig == "" && o.context == "" {
		return f(ctx, o.offline)
	}
	cfg, err := (&options{kubeconfig: o.kubeconfig, context: o.context}).restConfig()
	if err != nil {
		return err
	}
	waits := waiting.Start(cmd.ErrOrStderr())
	defer waits.Stop()
	cfg.Wrap(waits.Wrap)
	if _, err := checkConnection(ctx, logr.Discard(), cfg, connectTimeout); err != nil {
		return err
	}
	return offline.WithCluster(ctx, cfg, func(c *offline.Cluster) error {
		o.offline.Cluster = c
		return f(ctx, o.offline)
	})
}

const offlineHelp = `
Without a cluster, templates can use the built-in kinds of Kubernetes and the types of the CustomResourceDefinitions
and Blueprints in the files. --kubeconfig or --context adds the types of a cluster, to which nothing is written.

The exit code is 0 if there are no problems, 1 if there are, and 2 if the files cannot be read or the usage is wrong.`

func newValidateCommand() *cobra.Command {
	o := &offlineOptions{}
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check Blueprints and their instances before they are applied",
		Long: `Check Blueprints in the same way as the API server and the platform, and print problems with line numbers.
Instances of these Blueprints are validated against the schema. If there are no problems, the number of Blueprints and
instances is printed on stderr. A FILE can be a directory, or - for stdin.

Permissions, ServiceAccounts and the memory budget are not checked. Incompatible changes to existing types are reported
only if a cluster is given.
` + offlineHelp,
		Example: `  # Check the Blueprints and instances in a directory
  dynamic-controller validate deploy/

  # Check a Blueprint that creates objects of another operator's type
  dynamic-controller validate blueprint.yaml certificates-crd.yaml

  # Check against the types of the current cluster
  dynamic-controller validate --kubeconfig ~/.kube/config blueprint.yaml`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeManifests,
		RunE: func(cmd *cobra.Command, files []string) error {
			return o.run(cmd, func(ctx context.Context, options offline.Options) error {
				return offline.Validate(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), files, options)
			})
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func newRenderCommand() *cobra.Command {
	o, render := &offlineOptions{}, offline.RenderOptions{}
	cmd := &cobra.Command{
		Use:   "render BLUEPRINT INSTANCE",
		Short: "Print the children of an instance",
		Long: `Print the children of an instance in the order in which they are applied. The children in a stage are applied
when those of the stages before it are ready.

A child that does not exist is assumed to be created exactly as it is printed. Resources that read other values, such as
the status of a child, are listed on stderr with the reason why they wait. --children provides these values. The labels,
annotations and owner references that the platform adds are not printed.

BLUEPRINT can also be a directory that contains the types on which the Blueprint depends.
` + offlineHelp,
		Example: `  # Print what the platform would create for an instance
  dynamic-controller render blueprint.yaml instance.yaml

  # Continue with the children that exist in a cluster
  kubectl get service,configmap -o yaml >children.yaml
  dynamic-controller render blueprint.yaml instance.yaml --children children.yaml`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeManifests,
		RunE: func(cmd *cobra.Command, files []string) error {
			return o.run(cmd, func(ctx context.Context, options offline.Options) error {
				render.Options = options
				return offline.Render(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), files, render)
			})
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&render.Namespace, "namespace", "n", metav1.NamespaceDefault,
		"the `NAMESPACE` of an instance that does not set metadata.namespace")
	cmd.Flags().StringVar(&render.Children, "children", "",
		"a `FILE` with existing children and objects that externalRef names, or - for stdin")
	return cmd
}

// completeManifests completes the names of manifest files.
func completeManifests(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
}
