"""HTTP itself: the server, authentication, policy, microversions, schemas, errors and pages.

Nothing here knows a resource of the API. A handler belongs in the folder of its subject.
"""
