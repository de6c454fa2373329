// Package access authenticates and authorizes requests with the API server: a TokenReview authenticates the bearer
// token, and a SubjectAccessReview authorizes the user for the path.
package access
