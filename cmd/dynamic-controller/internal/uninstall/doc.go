// Package uninstall removes what the platform has added to a cluster, while no replica is running.
//
// The order of the steps ensures that no interruption leaves objects that cannot be deleted:
//
//  1. the ValidatingWebhookConfiguration, so that no request waits for a webhook that is no longer served
//  2. the platform's finalizer and inventory on instances and, if instances are deleted, the instances themselves
//  3. Blueprints
//  4. the CustomResourceDefinitions that the platform created for Blueprints, which are released or deleted
//  5. the CustomResourceDefinition of Blueprints
//  6. ControllerRevisions with accepted specs, the Secret of the webhook and the Lease
//
// Each step reads what is left from the API server, so that an interrupted uninstallation can be repeated. Objects are
// listed in pages and are not kept in memory. Finalizers of other controllers are never removed.
package uninstall
