"""From chosen hosts to claimed ones: plan the jobs of one transaction, repair the plan on locked rows, and make the answer."""
